// Tables between bytes and GPT-2's printable characters.
#include "tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "base/utf8.h"

namespace dsv4::tokenizer {
namespace {

// 256 code points for bytes and, since they all lie below U+0144, their inverse as a small table.
struct Alphabet {
  std::array<uint16_t, 256> code_point_of_byte{};
  std::array<int16_t, 0x144> byte_of_code_point{};  // -1: stands for no byte.
};

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte_of_code_point) byte = -1;
  int next_substitute = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = StandsForItself(byte) ? byte : next_substitute++;
    alphabet.code_point_of_byte[static_cast<size_t>(byte)] = static_cast<uint16_t>(code_point);
    alphabet.byte_of_code_point[static_cast<size_t>(code_point)] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();
static_assert(kAlphabet.code_point_of_byte[' '] == 0x120 && kAlphabet.code_point_of_byte[0xAD] == 0x143);

}  // namespace

std::string ByteToAlphabet(unsigned char byte) {
  std::string text;
  AppendUtf8(kAlphabet.code_point_of_byte[byte], &text);
  return text;
}

std::optional<std::string> AlphabetToBytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint code_point = DecodeUtf8(text.data() + i);
    if (code_point.value >= kAlphabet.byte_of_code_point.size()) return std::nullopt;
    const int16_t byte = kAlphabet.byte_of_code_point[code_point.value];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    i += code_point.num_bytes;
  }
  return bytes;
}

}  // namespace dsv4::tokenizer
