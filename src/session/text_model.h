// TextModel: what the files of a model say about text: tokenizer, markers, tokens that end an answer, chat
// format. No weights. `run`, `serve`, `diagnose` and the C API read it here. Immutable but for a cache that
// has a lock, so that every thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "chat/profile.h"
#include "grammar/token_trie.h"
#include "session/model_card.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/stop_set.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::session {

struct TextModel {
  // A chat model's files: tokenizer.json, its card, what tells the chat format, and `revision`, which goes before what
  // they tell (empty: they decide; see FindProfile). Errors name the file or marker at fault.
  static Result<TextModel> Load(const std::string& directory, const std::string& revision);
  // Text without a chat: the tokenizer may lack the chat's markers. `special` and `profile` stay empty.
  static Result<TextModel> LoadRaw(const std::string& directory);
  // NotFound names the markers that the tokenizer lacks.
  static Result<TextModel> ForChat(tokenizer::Tokenizer tokenizer, const chat::ChatProfile* profile);

  // The model's vocab_size, which no file for text has. InvalidArgument when the tokenizer has more ids;
  // `name` is the model's.
  Status SetVocabSize(int64_t size, const std::string& name);
  // 1 for every id that has a string: an embedding has more rows than the tokenizer has tokens.
  std::vector<uint8_t> AllowedTokens() const;
  std::vector<int32_t> StopTokens() const;
  // The tokenizer's strings as a tree, which a grammar needs. Made at the first call. InvalidArgument when
  // some byte has no token.
  Result<std::shared_ptr<const grammar::TokenTrie>> Trie() const;
  // InvalidArgument names the efforts that the chat format knows. Empty, or without a chat: ok.
  Status CheckEffort(const std::string& effort) const;

  tokenizer::Tokenizer tokenizer;
  std::optional<tokenizer::SpecialTokens> special;
  tokenizer::StopSet stop_set;
  const chat::ChatProfile* profile = nullptr;
  int64_t vocab_size = 0;  // 0: not known yet.
  ModelCard card;          // Empty but for Load and LoadRaw.

 private:
  struct LazyTrie;
  explicit TextModel(tokenizer::Tokenizer made);
  std::shared_ptr<LazyTrie> trie_;
};

// The chat format of a model directory: `revision` when it is not empty, else what its files say, else "v4".
// A file that is there and cannot be read is an error: it would change the answers.
Result<const chat::ChatProfile*> FindProfile(const std::string& directory, const std::string& revision);

// A warning when config.json names another token as the first of a sequence than the tokenizer: the
// tokenizer's is used.
void WarnOfOtherBos(std::span<const int64_t> bos_token_ids, const tokenizer::SpecialTokens& special);

}  // namespace dsv4::session
