// Changes to a server that runs: API keys, TLS files, the access log.
#include "apps/serve/reload.h"

#include <fmt/format.h>

#include "apps/serve/api_keys.h"
#include "base/error_output.h"
#include "base/log.h"
#include "base/read_file.h"

namespace dsv4::apps {

Result<std::vector<std::string>> ApiKeys(const ServeOptions& options) {
  std::vector<std::string> keys = options.api_keys;
  for (const std::string& key : keys) DSV4_TRY(CheckApiKey(key, "--api-key"));
  if (options.api_key_file.empty()) return keys;
  DSV4_ASSIGN_OR_RETURN(const std::string text,
                        ReadFile(options.api_key_file, FileKind::kAny, kMaxModelDocumentBytes));
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> more, ParseApiKeys(text, options.api_key_file));
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

void Reload(const ServeOptions& options, server::Service& service, server::AccessLog* access_log,
            server::HttpServer& http) {
  std::vector<std::string> done;
  const auto report = [&](const Status& status, std::string what) {
    if (status.ok())
      done.push_back(std::move(what));
    else
      LogWarning(fmt::format("SIGHUP: {}; what was in force stays", status.message()));
  };
  if (!options.api_key_file.empty()) {
    const Result<std::vector<std::string>> keys = ApiKeys(options);
    if (keys) service.SetApiKeys(*keys);
    report(keys ? Status() : keys.error(), fmt::format("{} API keys", keys ? keys->size() : 0));
  }
  if (!options.tls_certificate.empty()) report(http.ReloadTls(), "the TLS certificate");
  if (access_log != nullptr) report(access_log->Reopen(), "the access log");
  PrintError("dsv4 reloads on SIGHUP: {}\n",
             done.empty() ? "nothing" : fmt::format("{}", fmt::join(done, ", ")));
}

std::string OpenToOthers(const ServeOptions& options, bool has_keys) {
  const std::string& host = options.host;
  const bool own = host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
  if (has_keys || own || !options.unix_socket.empty()) return {};
  return fmt::format(
      "--host {}: other machines reach this server, and it answers anyone: no --api-key or --api-key-file",
      host);
}

}  // namespace dsv4::apps
