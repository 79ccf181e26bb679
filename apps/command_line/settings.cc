// Options from the environment and from TOML, with their origin for errors.
#include "apps/command_line/settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "apps/command_line/settings_reader.h"
#include "apps/command_line/usage.h"

namespace dsv4::apps {
namespace {

std::string VariableName(const std::vector<std::string>& words) {
  std::string name = "DSV4";
  for (const std::string& word : words) {
    name += '_';
    for (const char c : word) {
      name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
  }
  return name;
}

bool IsSet(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  return value != nullptr && *value != '\0';
}

std::string DefaultPath() {
  if (const char* base = std::getenv("XDG_CONFIG_HOME"); base != nullptr && *base == '/') {
    return std::string(base) + "/dsv4/config.toml";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.config/dsv4/config.toml";
  }
  return {};
}

void NameVariables(CLI::App& app, const std::vector<std::string>& words) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    // --model has had its variable for long, which gives way to --weights too.
    if (name == "help" || name == "help-all" || name == "version" || name == "config" || name == "model")
      continue;
    std::vector<std::string> all = words;
    all.push_back(name);
    option->envname(VariableName(all));
  }
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name != "help" && name != "help-all" && name != "version" && name != "config")
        names.push_back(name);
    }
  }
  return names;
}

}  // namespace

// Settings whose names are options, without those that give way to the environment.
class Settings::File : public CLI::Config {
 public:
  File(CLI::App& app, std::shared_ptr<Lines> lines) : app_(app), lines_(std::move(lines)) {}

  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string path = app_.get_config_ptr()->as<std::string>();
    const Result<std::vector<Setting>> settings =
        ReadSettings(std::string(std::istreambuf_iterator<char>(input), {}));
    if (!settings) throw CLI::ConfigError(fmt::format("{}, {}", path, settings.error().message()));
    std::vector<CLI::ConfigItem> found;
    for (const Setting& setting : *settings) {
      const std::string place = fmt::format("{}, line {}", path, setting.line);
      CheckName(setting, place);
      lines_->emplace(fmt::format("{}", fmt::join(setting.path, ".")), place);
      if (IsSet(VariableName(setting.path))) continue;
      CLI::ConfigItem& item = found.emplace_back();
      item.parents.assign(setting.path.begin(), setting.path.end() - 1);
      item.name = setting.path.back();
      item.inputs = setting.values;
    }
    return found;
  }

 private:
  void CheckName(const Setting& setting, const std::string& place) const {
    const std::string name = fmt::format("{}", fmt::join(setting.path, "."));
    const CLI::App* owner = &app_;
    if (setting.path.size() > 1) {
      std::vector<std::string> commands;
      for (const CLI::App* each : app_.get_subcommands([](const CLI::App*) { return true; })) {
        commands.push_back(each->get_name());
        if (each->get_name() == setting.path.front()) owner = each;
      }
      if (owner != &app_ && setting.path.size() > 2) {
        throw CLI::ConfigError(fmt::format("{}: {}: no table of dsv4 {}, whose options stand in its own",
                                           place, name, owner->get_name()));
      }
      if (owner == &app_) {
        throw CLI::ConfigError(fmt::format("{}: {}: no command '{}'{}", place, name, setting.path.front(),
                                           DidYouMean(setting.path.front(), commands)));
      }
    }
    const std::vector<std::string> names = OptionNames(*owner);
    if (std::find(names.begin(), names.end(), setting.path.back()) != names.end()) return;
    throw CLI::ConfigError(fmt::format("{}: {}: no option of {}{}", place, name,
                                       owner == &app_ ? "every command" : "dsv4 " + owner->get_name(),
                                       DidYouMean(setting.path.back(), names)));
  }

  CLI::App& app_;  // Its --config is asked for its value.
  std::shared_ptr<Lines> lines_;
};

Settings::Settings(CLI::App& app) : app_(app) {
  const char* path = std::getenv("DSV4_CONFIG");
  const bool named = path != nullptr && *path != '\0';
  default_path_ = path != nullptr ? std::string(path) : DefaultPath();
  CLI::Option* option =
      app.set_config("--config", default_path_,
                     "File of further options (TOML): those of every command, then [run], [serve], ...");
  app.config_formatter(std::make_shared<File>(app, lines_));
  app.allow_config_extras(CLI::config_extras_mode::error);
  option->type_name("FILE");
  // A file that is named, or is there, must be one that can be read.
  std::error_code error;
  option->required(named || (!default_path_.empty() && std::filesystem::exists(default_path_, error)));
  NameVariables(app, {});
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    NameVariables(*command, {command->get_name()});
}

std::string Settings::OriginOf(const CLI::App& owner, const CLI::Option& option) const {
  if (option.get_lnames().empty()) return {};
  for (const std::string& word : words_) {
    if (word == "--") break;
    if (word.starts_with("--") ? option.check_lname(word.substr(2, word.find('=') - 2))
                               : word.size() > 1 && word[0] == '-' && option.check_sname(word.substr(1, 1))) {
      return {};
    }
  }
  if (IsSet(option.get_envname())) return option.get_envname();
  std::string name = option.get_lnames().front();
  if (&owner != &app_) name = owner.get_name() + "." + name;
  const auto found = lines_->find(name);
  return found == lines_->end() ? std::string() : found->second;
}

std::vector<std::string> Settings::MistypedVariables(const CLI::App& command) const {
  // Variables that are no options (docs/environment-variables.md).
  constexpr std::string_view kOthers[] = {"DSV4_MODEL",           "DSV4_CONFIG",  "DSV4_CPU_ISA",
                                          "DSV4_EXPERT_PROFILES", "DSV4_HISTORY", "DSV4_CONVERSATION",
                                          "DSV4_SPIN_US"};
  const std::string all_prefix = VariableName({}) + '_';
  const std::string own_prefix = VariableName({command.get_name()}) + '_';
  std::vector<std::string> variables(std::begin(kOthers), std::end(kOthers));
  for (const CLI::App* app : {static_cast<const CLI::App*>(&app_), &command}) {
    for (const CLI::Option* option : app->get_options())
      if (!option->get_envname().empty()) variables.push_back(option->get_envname());
  }
  const auto is_known = [&](const std::string& name) {
    return std::ranges::find(variables, name) != variables.end();
  };

  std::vector<std::string> sentences;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string name = std::string(*variable).substr(0, std::string_view(*variable).find('='));
    if (!name.starts_with(all_prefix) || is_known(name) || !IsSet(name)) continue;
    // The name of a command too much, or too little; else letters, in what follows the same beginning.
    const bool is_own = name.starts_with(own_prefix);
    const std::string& prefix = is_own ? own_prefix : all_prefix;
    const std::string rest = name.substr(prefix.size());
    std::string meant = (is_own ? all_prefix : own_prefix) + rest;
    if (!is_known(meant)) {
      std::vector<std::string> rests;
      for (const std::string& each : variables) {
        if (each.starts_with(prefix) && (is_own || !each.starts_with(own_prefix)))
          rests.push_back(each.substr(prefix.size()));
      }
      const std::string nearest = Nearest(rest, rests);
      if (nearest.empty()) {
        // Others' variables may begin as all of ours do.
        if (is_own) sentences.push_back(fmt::format("{} is the variable of no option", name));
        continue;
      }
      meant = prefix + nearest;
    }
    sentences.push_back(fmt::format("{} is the variable of no option; did you mean {}?", name, meant));
  }
  return sentences;
}

std::string Settings::FileOrigin() const {
  for (const std::string& word : words_) {
    if (word == "--") break;
    if (word == "--config" || word.starts_with("--config=")) return "--config";
  }
  return IsSet("DSV4_CONFIG") ? "DSV4_CONFIG" : "settings";
}

}  // namespace dsv4::apps
