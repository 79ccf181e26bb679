// Table of character classes of all code points, from Unicode categories.
#include "tokenizer/char_class.h"

#include <utf8proc.h>

#include <algorithm>

namespace dsv4::tokenizer {
namespace {

CharClass Classify(uint32_t c) {
  if (c == '\r' || c == '\n') return CharClass::kNewline;
  // White_Space is the separators plus these controls.
  if ((c >= 0x09 && c <= 0x0D) || c == 0x85) return CharClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharClass::kSpace;
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return CharClass::kLetterOrMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return CharClass::kPunctOrSymbol;
    default:
      return CharClass::kOther;
  }
}

}  // namespace

const CharClassTable& CharClassTable::Get() {
  static const CharClassTable table;
  return table;
}

CharClassTable::CharClassTable() {
  for (uint32_t page = 0; page < kNumPages; ++page) {
    Block block;
    for (uint32_t i = 0; i < block.size(); ++i) block[i] = Classify(page << 8 | i);
    // Most pages repeat the one before (a script, or nothing assigned), so searching from the back is short.
    const auto found = std::find(blocks_.rbegin(), blocks_.rend(), block);
    if (found == blocks_.rend()) {
      block_of_page_[page] = static_cast<uint16_t>(blocks_.size());
      blocks_.push_back(block);
    } else {
      block_of_page_[page] = static_cast<uint16_t>(blocks_.rend() - found - 1);
    }
  }
  std::copy_n(blocks_[block_of_page_[0]].begin(), ascii_.size(), ascii_.begin());
}

}  // namespace dsv4::tokenizer
