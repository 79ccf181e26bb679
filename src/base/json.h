// JSON parsing with errors as Status. The type is nlohmann's ordered_json: key order is wire format in tool
// schemas and in tool-call arguments. Include this only in .cc files: the header is heavy.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

// A value that was to become an object when memory ran out says that it is one and has none. Its destructor
// must not mind: it runs next.
template <>
inline void nlohmann::ordered_json::assert_invariant(bool) const noexcept {}

// nlohmann's destructor takes memory, to go without recursion through a document of any depth. Where there is
// none, that ends the process: a destructor may not throw. Ours are at most ParseJson's `max_depth` deep, so
// they are destroyed level by level.
template <>
inline void nlohmann::ordered_json::json_value::destroy(nlohmann::detail::value_t type) {
  switch (type) {
    case nlohmann::detail::value_t::object:
      delete object;
      return;
    case nlohmann::detail::value_t::array:
      delete array;
      return;
    case nlohmann::detail::value_t::string:
      delete string;
      return;
    case nlohmann::detail::value_t::binary:
      delete binary;
      return;
    default:
      return;
  }
}

namespace dsv4 {

using Json = nlohmann::ordered_json;

// `what` names the document in the error ("config.json"). Nesting deeper than `max_depth` is an error, so
// that hostile input cannot exhaust the stack. Invalid UTF-8 and trailing text are errors.
Result<Json> ParseJson(std::string_view text, std::string_view what, int max_depth = 128);

// A document's text, in lines of `indent` blanks a level or in one line without. Bytes that are no UTF-8 become U+FFFD: nlohmann's own dump
// throws.
inline std::string JsonText(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Takes the parser's own name for a fault off what it says: "[json.exception.parse_error.101] ".
std::string_view JsonFault(std::string_view what);

// Refuses a text with a zero byte, which the parser takes for the end, whatever follows. ParseJson does so.
Status CheckZeroBytes(std::string_view json, std::string_view what);

}  // namespace dsv4
