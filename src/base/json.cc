// Parser of JSON texts by nlohmann, with depth bounded and faults as Status.
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace dsv4 {

std::string_view JsonFault(std::string_view what) {
  if (what.starts_with("[json.exception.")) what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
  return what;
}

Status CheckZeroBytes(std::string_view json, std::string_view what) {
  const size_t zero = json.find('\0');
  if (zero == std::string_view::npos) return {};
  return InvalidArgument(fmt::format("{}: a zero byte at byte {}, which JSON has not", what, zero));
}

Result<Json> ParseJson(std::string_view text, std::string_view what, int max_depth) {
  DSV4_TRY(CheckZeroBytes(text, fmt::format("{}: not valid JSON", what)));
  // The parser recurses per level, so depth is bounded before it starts. Brackets inside strings do not
  // count.
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_depth) {
        return Error(InvalidArgument(
            fmt::format("{}: JSON nested deeper than {}", what, Counted(max_depth, "level"))));
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    return Error(InvalidArgument(fmt::format("{}: not valid JSON: {}", what, JsonFault(e.what()))));
  }
}

}  // namespace dsv4
