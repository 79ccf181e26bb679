// Server-sent events of JSON. Include only in .cc files: the JSON header is heavy.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace dsv4::server {

// An event, with or without a name.
inline std::string SseData(const Json& json) { return "data: " + JsonText(json) + "\n\n"; }
inline std::string SseEvent(std::string_view name, const Json& json) {
  return "event: " + std::string(name) + "\n" + SseData(json);
}

}  // namespace dsv4::server
