// Environment, arguments and files of each client that launch knows.
#include "apps/launch/clients.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "apps/terminal/printable.h"
#include "base/json.h"

namespace dsv4::apps {
namespace {

struct Client {
  std::string_view name;
  ClientSetup (*setup)(const ServerAddress& server, const std::string& folder);
};

ClientSetup Aider(const ServerAddress& server, const std::string&) {
  return {.program = "aider",
          .arguments = {"--model", "openai/" + server.model},
          .environment = {{"OPENAI_API_BASE", server.url + "/v1"}, {"OPENAI_API_KEY", server.key}},
          .files = {}};
}

ClientSetup Claude(const ServerAddress& server, const std::string&) {
  return {.program = "claude",
          .arguments = {},
          .environment = {{"ANTHROPIC_BASE_URL", server.url},
                          {"ANTHROPIC_AUTH_TOKEN", server.key},
                          {"ANTHROPIC_MODEL", server.model},
                          {"ANTHROPIC_DEFAULT_OPUS_MODEL", server.model},
                          {"ANTHROPIC_DEFAULT_SONNET_MODEL", server.model},
                          {"ANTHROPIC_DEFAULT_HAIKU_MODEL", server.model},
                          // Only what goes to the server; no telemetry, no updates.
                          {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"}},
          .files = {}};
}

// A TOML string: JSON's escapes are TOML's.
std::string Toml(const std::string& text) { return Json(text).dump(); }

ClientSetup Codex(const ServerAddress& server, const std::string&) {
  return {.program = "codex",
          .arguments = {"-c", "model_provider=\"dsv4\"", "-c", "model_providers.dsv4.name=\"dsv4\"", "-c",
                        "model_providers.dsv4.base_url=" + Toml(server.url + "/v1"), "-c",
                        "model_providers.dsv4.wire_api=\"responses\"", "-c",
                        "model_providers.dsv4.env_key=\"DSV4_API_KEY\"", "-c", "model=" + Toml(server.model)},
          .environment = {{"DSV4_API_KEY", server.key}},
          .files = {}};
}

// llm reads further models from its user folder, and keeps its log of answers there.
ClientSetup Llm(const ServerAddress& server, const std::string& folder) {
  const std::string user = folder + "/llm";
  const std::string models = fmt::format(
      "- model_id: {0}\n  model_name: {0}\n  api_base: {1}\n  supports_tools: true\n  supports_schema: "
      "true\n",
      Json(server.model).dump(), Json(server.url + "/v1").dump());
  return {
      .program = "llm",
      .arguments = {},
      .environment = {{"LLM_USER_PATH", user}, {"LLM_MODEL", server.model}, {"OPENAI_API_KEY", server.key}},
      .files = {{user + "/extra-openai-models.yaml", models}}};
}

ClientSetup Opencode(const ServerAddress& server, const std::string&) {
  const Json config = {
      {"provider",
       {{"dsv4",
         {{"npm", "@ai-sdk/openai-compatible"},
          {"name", "dsv4"},
          {"options", {{"baseURL", server.url + "/v1"}, {"apiKey", server.key}}},
          {"models",
           {{server.model, {{"name", server.model}, {"tool_call", true}, {"reasoning", true}}}}}}}}},
      {"model", "dsv4/" + server.model},
      {"small_model", "dsv4/" + server.model}};
  return {.program = "opencode",
          .arguments = {},
          .environment = {{"OPENCODE_CONFIG_CONTENT", config.dump()}},
          .files = {}};
}

constexpr std::array kClients = {Client{"aider", Aider}, Client{"claude", Claude}, Client{"codex", Codex},
                                 Client{"llm", Llm}, Client{"opencode", Opencode}};

}  // namespace

std::vector<std::string> ClientNames() {
  std::vector<std::string> names;
  for (const Client& client : kClients) names.emplace_back(client.name);
  return names;
}

Result<ClientSetup> SetupOf(std::string_view client, const ServerAddress& server, const std::string& folder) {
  const auto found = std::ranges::find(kClients, client, &Client::name);
  if (found == kClients.end()) {
    return Error(InvalidArgument(
        fmt::format("client {}: unknown, want one of {}", client, fmt::join(ClientNames(), ", "))));
  }
  return found->setup(server, folder);
}

std::string AsShell(const ClientSetup& setup) {
  std::string text;
  for (const auto& [path, content] : setup.files) {
    const size_t slash = path.rfind('/');
    text += fmt::format("mkdir -p {}\nprintf %s {} > {}\n", ShellWord(path.substr(0, slash)),
                        ShellWord(content), ShellWord(path));
  }
  for (const auto& [name, value] : setup.environment)
    text += fmt::format("export {}={}\n", name, ShellWord(value));
  text += ShellWord(setup.program);
  for (const std::string& argument : setup.arguments) text += " " + ShellWord(argument);
  return text + "\n";
}

}  // namespace dsv4::apps
