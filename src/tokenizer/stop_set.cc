// Set of ids that end an answer, with the source of each.
#include "tokenizer/stop_set.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsv4::tokenizer {

StopSet StopSet::ForChat(const SpecialTokens& tokens) {
  StopSet set;
  set.Insert(tokens.end_of_sentence, kEndOfSentence);
  set.Insert(tokens.user, kUser);
  return set;
}

Status StopSet::Add(const Tokenizer& tokenizer, std::string_view token) {
  const std::optional<TokenId> id = tokenizer.FindToken(token);
  if (!id) return NotFound(fmt::format("stop token \"{}\": the tokenizer has no token of this text", token));
  Insert(*id, token);
  return {};
}

void StopSet::Insert(TokenId id, std::string_view text) {
  if (!Contains(id)) entries_.push_back({id, std::string(text)});
}

bool StopSet::Contains(TokenId id) const {
  return std::any_of(entries_.begin(), entries_.end(), [id](const Entry& entry) { return entry.id == id; });
}

}  // namespace dsv4::tokenizer
