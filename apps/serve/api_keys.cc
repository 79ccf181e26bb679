// Reads API keys, and refuses those that could not work.
#include "apps/serve/api_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace dsv4::apps {
namespace {

constexpr size_t kMaxKeyBytes = 4096;  // A request's header has 32 KiB.

}  // namespace

Status CheckApiKey(std::string_view key, std::string_view where) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const auto wrong = [&](std::string_view got, std::string_view wanted) {
    return InvalidArgument(fmt::format("{}: got {}, wanted {}", where, got, wanted));
  };
  // An unset variable in a start script: the server would look protected and be open.
  if (key.find_first_not_of(kBlanks) == std::string_view::npos)
    return wrong("an empty key", "at least one character that is not blank");
  if (key.starts_with("\xEF\xBB\xBF"))
    return wrong("a byte-order mark in front of the key", "UTF-8 without one");
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  if (const auto found = std::ranges::find_if(key, is_control); found != key.end()) {
    return wrong(fmt::format("the control character 0x{:02X} at byte {} of the key",
                             static_cast<unsigned char>(*found), found - key.begin()),
                 "a key that a header can carry");
  }
  if (kBlanks.find(key.front()) != std::string_view::npos ||
      kBlanks.find(key.back()) != std::string_view::npos)
    return wrong("blanks around the key", "none: no client sends them");
  if (key.size() > kMaxKeyBytes)
    return wrong(fmt::format("a key of {}", Counted(key.size(), "byte")),
                 fmt::format("at most {}", kMaxKeyBytes));
  return {};
}

Result<std::vector<std::string>> ParseApiKeys(std::string_view text, const std::string& path) {
  std::vector<std::string> keys;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t length = std::min(text.find('\n'), text.size());
    std::string_view key = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (key.ends_with('\r')) key.remove_suffix(1);
    if (key.empty()) continue;
    const std::string where = fmt::format("{}, line {}", path, line);
    if (key.starts_with('#')) {
      return Error(InvalidArgument(
          where + ": got a line that begins with '#', wanted a key: a file of keys has no comments"));
    }
    DSV4_TRY(CheckApiKey(key, where));
    keys.emplace_back(key);
  }
  if (keys.empty()) return Error(InvalidArgument(path + ": no API key in it"));
  return keys;
}

}  // namespace dsv4::apps
