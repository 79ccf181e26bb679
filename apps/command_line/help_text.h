// HelpText: what --help and --help-all print, wrapped to the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "apps/command_line/command.h"

namespace dsv4::apps {

// Examples first, then options of the command, then shared ones. --help leaves out what is rarely needed and
// counts it. --help-all has every option. No line is longer than the terminal of standard output; elsewhere
// than COLUMNS, or 80.
class HelpText : public CLI::FormatterBase {
 public:
  // `commands` must outlive this.
  explicit HelpText(const Commands& commands) : commands_(commands) {}
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;

 private:
  const Commands& commands_;
};

// The lines below "Examples:" of a command; of dsv4 itself where `command` is empty.
std::string_view ExamplesOf(std::string_view command);

// The words that the option takes, where they are a list: "{a,b}" in the name of its type.
std::vector<std::string> Choices(const CLI::Option& option);

}  // namespace dsv4::apps
