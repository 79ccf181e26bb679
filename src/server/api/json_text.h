// Writing JSON for replies. Include only in .cc files: the JSON header is heavy.
#pragma once

#include <string>

#include "base/json.h"

namespace dsv4::server {

// One line. Our texts are valid UTF-8; should one not be, it is repaired rather than thrown over.
inline std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A server-sent event, with or without a name.
inline std::string SseData(const Json& json) { return "data: " + JsonText(json) + "\n\n"; }
inline std::string SseEvent(std::string_view name, const Json& json) {
  return "event: " + std::string(name) + "\n" + SseData(json);
}

}  // namespace dsv4::server
