// ProtobufWriter: the wire format of protocol buffers, as far as OTLP needs it: four kinds of fields, and
// messages in messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4::server {

class ProtobufWriter {
 public:
  void Bytes(uint32_t field, std::string_view bytes) {
    Varint(field << 3 | 2);
    Varint(bytes.size());
    out_ += bytes;
  }
  void Message(uint32_t field, const ProtobufWriter& message) { Bytes(field, message.out_); }
  void Int(uint32_t field, int64_t value) {
    Varint(field << 3);
    Varint(static_cast<uint64_t>(value));
  }
  void Fixed64(uint32_t field, uint64_t value) {
    Varint(field << 3 | 1);
    for (int shift = 0; shift < 64; shift += 8) out_ += static_cast<char>(value >> shift & 0xFF);
  }
  const std::string& text() const { return out_; }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }
  std::string out_;
};

}  // namespace dsv4::server
