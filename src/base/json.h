// JSON parsing with errors as Status. The type is nlohmann's ordered_json: key order is wire format in tool
// schemas and in tool-call arguments. Include this only in .cc files: the header is heavy.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/status.h"

namespace dsv4 {

using Json = nlohmann::ordered_json;

// `what` names the document in the error ("config.json"). Nesting deeper than `max_depth` is an error, so
// that hostile input cannot exhaust the stack. Invalid UTF-8 and trailing text are errors.
Result<Json> ParseJson(std::string_view text, std::string_view what, int max_depth = 128);

}  // namespace dsv4
