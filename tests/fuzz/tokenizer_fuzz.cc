// Any bytes as a text for a fixed tokenizer, in two spans that the first byte parts. The bytes come back, and PCRE2 and the scanner agree.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/testing.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer {
namespace {

void FuzzText(std::string_view bytes, size_t border) {
  static const Tokenizer tokenizer = testing::ParseOrDie(testing::ToyFile());
  border = bytes.empty() ? 0 : border % bytes.size();
  const std::vector<TextSpan> spans = {{bytes.substr(0, border), true}, {bytes.substr(border), false}};
  const auto ids = tokenizer.Encode(spans);
  const bool is_valid = FindInvalidUtf8(bytes) == std::string_view::npos;
  DSV4_CHECK(ids.has_value() == is_valid);
  (void)RepairUtf8(bytes);
  if (!is_valid) return;
  DSV4_CHECK(tokenizer.DecodeBytes(*ids) == bytes);
  DSV4_CHECK(RepairUtf8(bytes) == bytes);

  static const auto oracle = MakeRegexPreTokenizer(V4SplitRules());
  static const auto scanner = MakeV4PreTokenizer();
  std::vector<std::string_view> expected;
  std::vector<std::string_view> pieces;
  const Status status = (*oracle)->Split(bytes, [&](std::string_view piece) { expected.push_back(piece); });
  if (!status.ok()) return;  // The oracle has limits.
  DSV4_CHECK(scanner->Split(bytes, [&](std::string_view piece) { pieces.push_back(piece); }).ok());
  // Unicode 15 is newer than PCRE2: it added U+0CF3 and U+0ECE, and else only characters of four bytes.
  if (bytes.find("\xE0\xB3\xB3") != bytes.npos || bytes.find("\xE0\xBB\x8E") != bytes.npos) return;
  for (const char c : bytes) {
    if (static_cast<uint8_t>(c) >= 0xF0) return;
  }
  DSV4_CHECK(pieces == expected) << bytes;
}

}  // namespace
}  // namespace dsv4::tokenizer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  dsv4::tokenizer::FuzzText({reinterpret_cast<const char*>(data + 1), size - 1}, data[0]);
  return 0;
}
