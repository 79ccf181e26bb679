// UTF-8 as the chat module needs it: a check, an encoder, and a stream filter. Ill-formed input never reaches a client
// or a JSON text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4::chat {

// Length of the longest well-formed prefix; text.size() when all is well formed. Overlong forms, surrogates and code
// points past U+10FFFF are ill formed.
size_t ValidUtf8Prefix(std::string_view text);

// `code` is a Unicode scalar value.
void AppendUtf8(uint32_t code, std::string& out);

// Makes any bytes, cut anywhere, into well-formed UTF-8. Each maximal ill-formed piece becomes one U+FFFD (the Unicode
// standard's recommended practice), whatever the cuts were.
class Utf8Filter {
 public:
  // Appends what is complete to `out`; keeps an unfinished character (at most three bytes) for the next call.
  void Feed(std::string_view bytes, std::string& out);
  // The text is over: an unfinished character becomes one U+FFFD.
  void Finish(std::string& out);

 private:
  std::string pending_;
};

}  // namespace dsv4::chat
