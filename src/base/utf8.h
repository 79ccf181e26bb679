// UTF-8: validation of input, decoding of validated text, and repair of streamed output. Everything that
// makes bytes into text uses this.
//
// Well-formed means Unicode table 3-7: shortest form, no surrogates, at most U+10FFFF.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4 {

// Offset in bytes of the first ill-formed sequence (a truncated one included); npos when `text` is
// well-formed.
size_t FindInvalidUtf8(std::string_view text);

struct CodePoint {
  uint32_t value;
  uint32_t num_bytes;
};

// The code point at `bytes`, which must be the start of a character of well-formed text.
inline CodePoint DecodeUtf8(const char* bytes) {
  const auto at = [bytes](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
  const uint32_t lead = at(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (at(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F), 4};
}

// Counts code points that begin in well-formed text, or in a part of it.
inline size_t NumCodePoints(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

// `code_point` must be a Unicode scalar value.
void AppendUtf8(uint32_t code_point, std::string* out);

// Turns a stream of arbitrary bytes into well-formed UTF-8. A character is written once its last byte is
// there. Every maximal ill-formed subsequence becomes one U+FFFD, as Python's errors="replace" and Rust's
// from_utf8_lossy do. The result does not depend on where the stream is cut. Not thread-safe.
class Utf8Repairer {
 public:
  void Append(std::string_view bytes, std::string* out);
  // The stream has ended: an unfinished character becomes one U+FFFD. The object is then as new.
  void Finish(std::string* out);

 private:
  std::array<char, 4> pending_{};
  size_t num_pending_ = 0;
};

// All of `bytes` through a Utf8Repairer.
std::string RepairUtf8(std::string_view bytes);

}  // namespace dsv4
