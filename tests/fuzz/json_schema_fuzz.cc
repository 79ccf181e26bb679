// Any bytes as a JSON schema (the first line) and a text under it: compiling and matching end soon and never crash, masks are never
// empty before the end, and a text that a matcher calls complete is JSON.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;  // NOLINT(google-build-using-namespace)
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line_end = input.find('\n');
  const auto program = grammar::CompileJsonSchema(input.substr(0, line_end));
  if (!program) {
    if (program.error().message().empty()) std::abort();
    return 0;
  }
  grammar::Matcher matcher(*program, grammar::testing::ToyTrie(), {grammar::testing::kStop});
  grammar::TokenMask mask(matcher.num_ids());
  matcher.Mask(mask);
  if (mask.Count() == 0) std::abort();
  const std::string_view text = line_end == std::string_view::npos ? "" : input.substr(line_end + 1);
  std::string accepted;
  for (const char c : text) {
    if (!matcher.AcceptBytes({&c, 1}).ok())
      continue;  // Skips what does not fit, so that most texts go somewhere.
    accepted.push_back(c);
    if (accepted.size() % 8 == 0) {
      matcher.Mask(mask);
      if (mask.Count() == 0) std::abort();
    }
  }
  if (matcher.IsComplete() && !ParseJson(accepted, "text").has_value()) std::abort();
  if (matcher.ForcedBytes().size() > 4096) std::abort();
  return 0;
}
