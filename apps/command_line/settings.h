// Options that stand in a file or in the environment instead of the command line. An option has the first
// value of: command line, environment, file, default.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dsv4::apps {

class Settings {
 public:
  // Gives `app` the option --config, and every option that has a long name its variable: DSV4_BACKEND for one
  // that all commands take, DSV4_SERVE_PORT for one of a command. Made when all options are there.
  explicit Settings(CLI::App& app);

  // Before anything is parsed: the command line, without the program's name.
  void SetWords(const std::vector<std::string>& words) { words_ = words; }

  // The variable, or file and line, that gave an option of `owner` its value; empty for the command line.
  std::string OriginOf(const CLI::App& owner, const CLI::Option& option) const;

  // A sentence for each variable that nothing reads, and whose name is nearly that of an option: one of every command, or of
  // `command`.
  std::vector<std::string> MistypedVariables(const CLI::App& command) const;

  // "DSV4_CONFIG", "--config", or the path that is looked at without either.
  std::string FileOrigin() const;

 private:
  using Lines = std::map<std::string, std::string>;  // "run.temperature" -> "/etc/dsv4.toml, line 4".
  class File;

  CLI::App& app_;
  std::string default_path_;
  std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();
  std::vector<std::string> words_;
};

}  // namespace dsv4::apps
