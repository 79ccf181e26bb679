// Writing MessagePack: the types that events have (https://github.com/msgpack/msgpack/blob/master/spec.md).
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4::server {

class MessagePack {
 public:
  void Nil() { text_ += '\xc0'; }
  void Array(size_t size) { Head(size, 0x90, 0xdc); }
  void Map(size_t size) { Head(size, 0x80, 0xde); }
  void String(std::string_view text) {
    if (text.size() < 32)
      text_ += static_cast<char>(0xa0 | text.size());
    else
      Big(0xdb, text.size(), 4);
    text_ += text;
  }
  void Unsigned(uint64_t value) {
    if (value < 0x80)
      text_ += static_cast<char>(value);
    else if (value <= UINT16_MAX)
      Big(0xcd, value, 2);
    else if (value <= UINT32_MAX)
      Big(0xce, value, 4);
    else
      Big(0xcf, value, 8);
  }
  void Double(double value) { Big(0xcb, std::bit_cast<uint64_t>(value), 8); }
  std::string Take() { return std::move(text_); }

 private:
  void Head(size_t size, uint8_t small, uint8_t large) {
    if (size < 16)
      text_ += static_cast<char>(small | size);
    else if (size <= UINT16_MAX)
      Big(large, size, 2);
    else
      Big(large + 1, size, 4);
  }
  void Big(uint8_t type, uint64_t value, int bytes) {
    text_ += static_cast<char>(type);
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) text_ += static_cast<char>(value >> shift);
  }
  std::string text_;
};

}  // namespace dsv4::server
