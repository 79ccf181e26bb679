// Classes of token ids: ids whose text differs in case, marks, compatibility form or blanks alone have one
// class. N-gram tables (model/engram) are looked up by classes. So the classes must be those of training.
//
// Classes count up from 0 by first appearance, ids in order. An id's class follows from its key:
//   Text: bytes that the id stands for; added tokens that are all of the byte alphabet stand for bytes too.
//   Parts of characters: text that is no well-formed UTF-8, or has a U+FFFD, has the token's spelling in tokenizer.json as its key.
//   All other text: NFKC, NFD, marks (category M) dropped, every character's own lower case. Each run of blank, tab, CR and LF is one blank.
//   A single blank stays; else White_Space is taken off both ends. Where nothing is left: the text as it was.
// Source: release inference code, engram.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer {

struct TokenClasses {
  std::vector<int32_t> of_id;
  int32_t count = 0;
};

// The key of well-formed text without U+FFFD.
std::string ClassKey(std::string_view text);

// Classes of the ids below `num_ids`. InvalidArgument names the first of them that has no token.
Result<TokenClasses> MakeTokenClasses(const Tokenizer& tokenizer, int64_t num_ids);

}  // namespace dsv4::tokenizer
