// tokenizer.json (Hugging Face `tokenizers`) as plain values, checked for form. What the values mean together
// is checked by their users: vocab.h, bpe.h, added_tokens.h, pre_tokenizer.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_id.h"

namespace dsv4::tokenizer {

struct VocabEntry {
  std::string text;  // In the byte alphabet.
  TokenId id;
};

struct MergeRule {
  std::string left;  // In the byte alphabet, as is `right`.
  std::string right;
};

struct AddedToken {
  std::string content;  // As it stands in text.
  TokenId id;
  bool special;     // Only told to people: the V4 markers have both values.
  bool normalized;  // Looked for after all others, in the text between them.
};

struct TokenizerFile {
  std::vector<VocabEntry> vocab;
  std::vector<MergeRule> merges;  // Lowest rank first.
  std::vector<AddedToken> added_tokens;
  std::vector<SplitRule> split_rules;
};

// Parses `json`; `what` names it in errors. Accepted, because V4's file and its relatives need no more:
//   model          BPE, byte-level, without dropout, affixes, ignore_merges; merges as "a b" strings or ["a", "b"] pairs.
//                  What is done with unknown bytes means nothing: all 256 have tokens
//   normalizer     null or an empty Sequence
//   pre_tokenizer  ByteLevel, or a Sequence of Split (Regex or String) that ends in ByteLevel
//   decoder        ByteLevel
//   added_tokens   without lstrip, rstrip, single_word
// truncation, padding and the post_processors that put tokens around an input work on whole inputs, and mean
// nothing here.
// Errors: Unimplemented for anything else that would change ids or text. InvalidArgument for a malformed
// document, duplicate keys and ids outside [0, kMaxNumTokenIds) included. Both name the key, what it holds
// and what is wanted.
Result<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view what);

}  // namespace dsv4::tokenizer
