#include <fmt/format.h>

#include <charconv>

#include "speculation/drafter.h"

namespace dsv4::speculation {
namespace {

// ":K" behind a drafter's name, or nothing, which is 0; -1 for anything else.
int64_t ParseCount(std::string_view rest, int64_t most) {
  if (rest.empty()) return 0;
  int64_t count = 0;
  const char* const end = rest.data() + rest.size();
  const auto [stopped, error] = std::from_chars(rest.data() + 1, end, count);
  const bool good = rest[0] == ':' && error == std::errc() && stopped == end && count >= 1 && count <= most;
  return good ? count : -1;
}

}  // namespace

std::string_view SourceName(Source source) {
  switch (source) {
    case Source::kSuffix:
      return "suffix";
    case Source::kGrammar:
      return "grammar";
    case Source::kMtp:
      return "mtp";
  }
  return "unknown";
}

Result<Choice> ParseChoice(std::string_view text) {
  if (text == "auto") return Choice{};
  if (text == "off") return Choice{.suffix = false, .mtp = false};
  for (const Source source : {Source::kSuffix, Source::kMtp}) {
    const std::string_view name = SourceName(source);
    if (!text.starts_with(name)) continue;
    const bool suffix = source == Source::kSuffix;
    const int64_t count = ParseCount(text.substr(name.size()), suffix ? kMostAlways : kMostMtp);
    if (count >= 0) return Choice{.suffix = suffix, .mtp = !suffix, .always = count};
  }
  return Error(InvalidArgument(
      fmt::format("got '{}', wanted auto, off, suffix[:K] with K from 1 to {} or mtp[:K] with K from 1 to {}",
                  text, kMostAlways, kMostMtp)));
}

}  // namespace dsv4::speculation
