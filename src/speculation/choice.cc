// Values of --speculation: drafters by name, with or without a number of tokens.
#include <fmt/format.h>

#include <array>
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
    case Source::kDspark:
      return "dspark";
  }
  return "unknown";
}

Result<Choice> ParseChoice(std::string_view text) {
  if (text == "auto") return Choice{};
  if (text == "off") return Choice::Off();
  for (const Source source : {Source::kSuffix, Source::kMtp, Source::kDspark}) {
    const std::string_view name = SourceName(source);
    if (!text.starts_with(name)) continue;
    const int64_t count =
        ParseCount(text.substr(name.size()), source == Source::kSuffix ? kMostAlways : kMostMtp);
    if (count < 0) break;
    return Choice{.suffix = source == Source::kSuffix,
                  .mtp = source == Source::kMtp,
                  .dspark = source == Source::kDspark,
                  .always = count};
  }
  return Error(
      InvalidArgument(fmt::format("got '{}', wanted auto, off, suffix[:K] with K from 1 to {}, or mtp[:K] or "
                                  "dspark[:K] with K from 1 to {}",
                                  text, kMostAlways, kMostMtp)));
}

std::string_view ChoiceName(const Choice& choice) {
  if (!choice.any()) return "off";
  if (choice.all()) return "auto";
  return SourceName(choice.suffix ? Source::kSuffix : choice.mtp ? Source::kMtp : Source::kDspark);
}

int DsparkEvidence(float chance_of_first) {
  constexpr std::array<float, 3> kBounds = {0.35F, 0.6F, 0.85F};
  int evidence = kDsparkEvidence + 1;
  for (const float bound : kBounds) evidence += chance_of_first >= bound ? 1 : 0;
  return evidence;
}

}  // namespace dsv4::speculation
