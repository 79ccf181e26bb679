// The byte alphabet of byte-level BPE (GPT-2): every byte has one printable character that stands for it in
// tokenizer.json. The bytes 21-7E, A1-AC and AE-FF stand for themselves as Latin-1. The other 68 bytes take
// U+0100, U+0101, ... in ascending order, so a blank is U+0120.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4::tokenizer {

// The UTF-8 text of the character that stands for `byte`.
std::string ByteToAlphabet(unsigned char byte);

// The bytes that `text` (well-formed UTF-8) stands for; nullopt when one of its characters stands for no
// byte.
std::optional<std::string> AlphabetToBytes(std::string_view text);

}  // namespace dsv4::tokenizer
