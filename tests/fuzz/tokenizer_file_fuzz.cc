// Input: a tokenizer.json. With whatever is accepted, text that can be encoded decodes to itself, and every
// id that is handed out is a defined one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tokenizer/tokenizer.h"

namespace {

constexpr std::string_view kTexts[] = {
    "", "ab ba", "a\n\n 12345 b\t", "<|x|>a<|x|>", "\xC3\xA9\xE2\x82\xAC", "aaaaaaaaaaab"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer =
      dsv4::tokenizer::Tokenizer::Parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!tokenizer.has_value()) {
    DSV4_CHECK(!tokenizer.error().message().empty());
    return 0;
  }
  for (const std::string_view text : kTexts) {
    const auto ids = tokenizer->Encode(text);
    if (!ids.has_value()) continue;  // A byte without a token, or a pattern that is too costly.
    DSV4_CHECK(std::all_of(ids->begin(), ids->end(), [&](auto id) { return tokenizer->IsDefined(id); }));
    DSV4_CHECK(tokenizer->DecodeBytes(*ids) == text);
  }
  return 0;
}

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  return dsv4::tokenizer::Tokenizer::Parse({reinterpret_cast<const char*>(data), size}, "seed").has_value();
}
