// The distinctions between characters that V4's pre-tokenizer makes, as one table over all code points.
//
// Built once per process from utf8proc's Unicode data, in two stages (blocks of 256 code points, equal blocks
// shared).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace dsv4::tokenizer {

enum class CharClass : uint8_t {
  kOther,          // Controls, format characters, private use, unassigned.
  kSpace,          // White_Space without CR and LF.
  kNewline,        // CR and LF.
  kLetterOrMark,   // \p{L}, \p{M}
  kNumber,         // \p{N}: Nd, Nl, No.
  kPunctOrSymbol,  // \p{P}, \p{S}
};

class CharClassTable {
 public:
  // Built at the first call; safe to call from several threads.
  static const CharClassTable& Get();

  // `code_point` <= U+10FFFF.
  CharClass operator[](uint32_t code_point) const {
    return blocks_[block_of_page_[code_point >> 8]][code_point & 0xFF];
  }
  CharClass OfAscii(unsigned char c) const { return ascii_[c]; }  // c < 0x80

 private:
  using Block = std::array<CharClass, 256>;
  static constexpr uint32_t kNumPages = 0x110000 >> 8;

  CharClassTable();

  std::array<CharClass, 128> ascii_;
  std::array<uint16_t, kNumPages> block_of_page_;
  std::vector<Block> blocks_;
};

}  // namespace dsv4::tokenizer
