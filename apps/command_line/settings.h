// Options that stand in a file or in the environment instead of the command line. An option has the first value of: command line,
// environment, file, default.
#pragma once

#include <CLI/CLI.hpp>

namespace dsv4::apps {

// Gives `app` the option --config, and every option that has a long name its variable: DSV4_BACKEND for one that all commands take,
// DSV4_SERVE_PORT for one of a command. Call when all options are there.
void AddSettings(CLI::App& app);

// Of the help texts: without a variable in every line.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace dsv4::apps
