#include "apps/command_line/settings.h"

#include <cctype>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

// TOML whose values give way to the environment.
class SettingsFile : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> values = CLI::ConfigTOML::from_config(input);
    std::erase_if(values, [](const CLI::ConfigItem& item) {
      std::vector<std::string> words = item.parents;
      words.push_back(item.name);
      const char* value = std::getenv(VariableName(words).c_str());
      return value != nullptr && *value != '\0';
    });
    return values;
  }
};

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
    if (name == "help" || name == "version" || name == "config" || name == "model") continue;
    std::vector<std::string> all = words;
    all.push_back(name);
    option->envname(VariableName(all));
  }
}

}  // namespace

void AddSettings(CLI::App& app) {
  const char* path = std::getenv("DSV4_CONFIG");
  const bool named = path != nullptr && *path != '\0';
  CLI::Option* option =
      app.set_config("--config", path != nullptr ? std::string(path) : DefaultPath(),
                     "File of further options (TOML): those of every command, then [run], [serve], ...");
  app.config_formatter(std::make_shared<SettingsFile>());
  app.allow_config_extras(CLI::config_extras_mode::error);
  option->type_name("FILE");
  option->required(named);  // A named file must be there.
  NameVariables(app, {});
  const auto formatter = std::make_shared<HelpFormatter>();
  app.formatter(formatter);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    command->formatter(formatter);
    NameVariables(*command, {command->get_name()});
  }
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text = CLI::Formatter::make_option_opts(option);
  const size_t begin = text.find(" (" + get_label("Env") + ":");
  if (begin != std::string::npos) text.erase(begin, text.find(')', begin) + 1 - begin);
  return text;
}

}  // namespace dsv4::apps
