// Changes to a server that runs (API keys, TLS files, the access log), and a warning of one that anyone may
// ask.
#pragma once

#include <string>
#include <vector>

#include "apps/serve/serve_command.h"
#include "server/http/http.h"
#include "server/observe/access_log.h"
#include "server/service.h"

namespace dsv4::apps {

// Keys of the options and of the file that they name. Errors name the option, or the file and the line.
Result<std::vector<std::string>> ApiKeys(const ServeOptions& options);

// On SIGHUP: reads keys and TLS files again and reopens the access log (may be null). What cannot be read
// stays as it was, with a warning.
void Reload(const ServeOptions& options, server::Service& service, server::AccessLog* access_log,
            server::HttpServer& http);

// A warning where other machines reach the server and no key protects it; else empty.
std::string OpenToOthers(const ServeOptions& options, bool has_keys);

}  // namespace dsv4::apps
