// Token ids to text as they are generated: nothing is written before it is a whole character.
#pragma once

#include <string>

#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer {

// The concatenation of what Append and Finish return is Tokenizer::Decode of all ids. One per sequence; not
// thread-safe.
class StreamDecoder {
 public:
  // `tokenizer` is borrowed and must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // The characters that `id` completes; may be empty. An id without a token adds nothing. Every token is
  // written, markers too: a caller that hides one decides so by its id.
  std::string Append(TokenId id) {
    std::string text;
    repairer_.Append(tokenizer_->TokenBytes(id), &text);
    return text;
  }
  // At the end of the sequence: U+FFFD if it stopped inside a character, else nothing. The decoder is then as
  // new.
  std::string Finish() {
    std::string text;
    repairer_.Finish(&text);
    return text;
  }

 private:
  const Tokenizer* tokenizer_;
  Utf8Repairer repairer_;
};

}  // namespace dsv4::tokenizer
