// Texts for shells and manuals, made of the same option table that parses the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace dsv4::apps {

// A completion script; `shell` is "bash", "zsh" or "fish".
std::string CompletionScript(const CLI::App& app, std::string_view shell);

// The manual page, section 1, of `command`; of dsv4 itself where it is null.
std::string ManualPage(const CLI::App& app, const CLI::App* command);

}  // namespace dsv4::apps
