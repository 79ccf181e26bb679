// Functions that the files of Service share.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"
#include "server/api/api_table.h"
#include "server/api/served_model.h"
#include "server/http/http.h"

namespace dsv4::server {

// An error in the dialect of the endpoint.
std::unique_ptr<Reply> Fail(const Status& status, std::string_view path);
std::unique_ptr<Reply> Fail(int http_status, std::string_view message, std::string_view path,
                            std::string_view code = {});
std::unique_ptr<Reply> OrFail(Result<std::unique_ptr<Reply>> reply, std::string_view path);

// The path under its own name, of one that is known under others too.
std::string CanonicalPath(std::string_view path);
// Why there is no such endpoint, where it is one of other servers; else empty.
std::string_view WhyAbsent(std::string_view path);

// Names of the query that the route does not read, with '?' in front; none for routes that need no key.
std::vector<std::string> UnknownQuery(const ApiRoute& route, std::string_view query);

// The body's object, instead of its text; an unknown model is NotFound.
Result<chat::JsonValue> ReadBody(HttpRequest& request, const ServedModel& model);

}  // namespace dsv4::server
