// UTF-8 validation, encoding of code points, and repair of byte streams that are cut anywhere.
#include "base/utf8.h"

#include <cstring>

namespace dsv4 {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Bytes in the sequence that `lead` opens; 0 when no well-formed sequence starts with it.
size_t SequenceLength(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // Continuation bytes, and the overlong C0 and C1.
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead <= 0xF4 ? 4 : 0;
}

// Whether `byte` may stand at `index` (1 to 3) of a sequence that starts with `lead`. Only the second byte
// depends on the lead: it excludes overlong forms, surrogates and values past U+10FFFF.
bool MayContinue(uint8_t lead, size_t index, uint8_t byte) {
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (index == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return byte >= low && byte <= high;
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  const size_t size = text.size();
  size_t i = 0;
  while (i < size) {
    if (size - i >= sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = SequenceLength(lead);
    if (length == 0 || length > size - i) return i;
    for (size_t k = 1; k < length; ++k) {
      if (!MayContinue(lead, k, static_cast<uint8_t>(text[i + k]))) return i;
    }
    i += length;
  }
  return std::string_view::npos;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  const auto push = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

void Utf8Repairer::Append(std::string_view bytes, std::string* out) {
  if (num_pending_ == 0) {
    const std::string_view whole = bytes.substr(0, FindInvalidUtf8(bytes));
    out->append(whole);
    bytes.remove_prefix(whole.size());
  }
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (num_pending_ > 0 && !MayContinue(static_cast<uint8_t>(pending_[0]), num_pending_, byte)) {
      // `byte` ends the ill-formed sequence without belonging to it, and may open the next one.
      out->append(kReplacementCharacter);
      num_pending_ = 0;
    }
    if (num_pending_ == 0 && SequenceLength(byte) == 0) {
      out->append(kReplacementCharacter);
      continue;
    }
    pending_[num_pending_++] = c;
    if (num_pending_ == SequenceLength(static_cast<uint8_t>(pending_[0]))) {
      out->append(pending_.data(), num_pending_);
      num_pending_ = 0;
    }
  }
}

void Utf8Repairer::Finish(std::string* out) {
  if (num_pending_ > 0) out->append(kReplacementCharacter);
  num_pending_ = 0;
}

std::string RepairUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  Utf8Repairer repairer;
  repairer.Append(bytes, &text);
  repairer.Finish(&text);
  return text;
}

}  // namespace dsv4
