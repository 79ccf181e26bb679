#include "apps/shared/speculation_flag.h"

#include <fmt/format.h>

#include <charconv>

namespace dsv4::apps {
namespace {

constexpr int64_t kMostDraftTokens = 64;

}  // namespace

Result<engine::SpeculationOptions> ParseSpeculation(const std::string& value, bool verifies) {
  engine::SpeculationOptions options;
  if (value == "off" || (value == "auto" && verifies)) return options;
  const std::string prefix = "suffix:";
  if (value == "auto" || value == "suffix" || value.starts_with(prefix)) {
    if (verifies) {
      return Error(InvalidArgument(fmt::format(
          "--speculation {}: --verify looks at steps of one token, which have no drafts; use one of "
          "the two",
          value)));
    }
    options.make_drafter = speculation::MakeSuffixDrafter;
    if (!value.starts_with(prefix)) return options;
    int64_t most = 0;
    const char* const end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data() + prefix.size(), end, most);
    if (error == std::errc() && rest == end && most >= 1 && most <= kMostDraftTokens) {
      options.most_tokens = most;
      options.always = true;
      return options;
    }
  }
  return Error(InvalidArgument(
      fmt::format("--speculation: got '{}', wanted auto, off, suffix or suffix:K with K from 1 to {}", value,
                  kMostDraftTokens)));
}

}  // namespace dsv4::apps
