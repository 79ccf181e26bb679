// Texts for shells and manuals, made of the same option table that parses the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "apps/command_line/command.h"

namespace dsv4::apps {

// A completion script; `shell` is "bash", "zsh" or "fish". It offers a command what that takes
// (Commands::Takes).
std::string CompletionScript(const Commands& commands, std::string_view shell);

// The manual page, section 1, of `command`; of dsv4 itself where it is null.
std::string ManualPage(const Commands& commands, const CLI::App* command);

}  // namespace dsv4::apps
