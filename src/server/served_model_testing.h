// models/tiny as the server holds it, without its weights.
#pragma once

#include <string>
#include <utility>

#include "server/served_model.h"

namespace dsv4::server {

// `tokenizer_path` names its tokenizer.json; `revision` its chat format.
inline ServedModel MakeTinyServedModel(const std::string& tokenizer_path, std::string_view revision) {
  tokenizer::Tokenizer tokenizer = std::move(*tokenizer::Tokenizer::Load(tokenizer_path));
  const tokenizer::SpecialTokens special = *tokenizer::SpecialTokens::Resolve(tokenizer);
  const auto trie =
      *grammar::TokenTrie::Create(tokenizer, {.think_end = special.think_end, .dsml = special.dsml});
  return {.id = "tiny",
          .tokenizer = std::move(tokenizer),
          .special = special,
          .stop_set = tokenizer::StopSet::ForChat(special),
          .profile = *chat::FindChatProfile(revision),
          .trie = trie,
          .vocab_size = 5120,
          .context_length = 4096};
}

}  // namespace dsv4::server
