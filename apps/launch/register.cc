// `dsv4 launch` on the command line.
#include <CLI/CLI.hpp>
#include <memory>
#include <regex>
#include <string>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/launch/clients.h"
#include "apps/launch/launch_command.h"

namespace dsv4::apps {
namespace {

// A scheme, a host, and where one is named a port. A fault in another form would else come up as a server
// that cannot be reached.
CLI::Validator HttpUrl() {
  const std::string wanted = "http(s)://HOST[:PORT][/PATH]";
  return CLI::Validator(
      [=](const std::string& text) {
        static const std::regex pattern(
            R"(https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:([0-9]{1,5}))?(/[!-~]*)?)", std::regex::icase);
        std::smatch parts;
        const bool url = std::regex_match(text, parts, pattern);
        const int port = url && parts[3].matched ? std::stoi(parts[3]) : 1;
        return url && port >= 1 && port <= 65535 ? std::string() : "got '" + text + "', wanted " + wanted;
      },
      wanted);
}

// The options of every command that were given, as words for another command.
std::vector<std::string> GivenOptions(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const bool flag = option->get_items_expected_max() == 0;
    for (const std::string& result : option->results())
      words.push_back("--" + option->get_lnames().front() + (flag ? "" : "=" + result));
  }
  return words;
}

}  // namespace

void RegisterLaunch(Commands& commands) {
  const auto kept = std::make_shared<LaunchOptions>();
  LaunchOptions& options = *kept;
  const CLI::App& app = commands.app();
  CLI::App& launch = commands.Add("launch", "Run a client on this machine's server, started where none runs",
                                  [kept, &app](const Invocation&) {
                                    kept->serve_words = GivenOptions(app);
                                    return RunLaunchCommand(*kept);
                                  });
  launch.add_option("CLIENT", options.client, "Which one")->required()->check(CLI::IsMember(ClientNames()));
  launch.add_option("ARGUMENTS", options.client_arguments, "For the client, behind --");
  launch.add_option("--port", options.port, "Of the server on this machine")
      ->check(Port())
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  launch.add_option("--url", options.url, "Of a server elsewhere; none is started")->check(HttpUrl());
  launch.add_option("--api-key", options.api_key, "Of the server");
  launch.add_option("--wait", options.wait_seconds, "Seconds for a server that loads its model")
      ->check(Positive())
      ->capture_default_str();
  launch.add_option("--program", options.program, "In place of CLIENT");
  launch.add_flag("--print", options.print, "Print the settings for a shell, run nothing");
}

}  // namespace dsv4::apps
