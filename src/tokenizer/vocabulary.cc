// Ids and strings of base and added tokens, both ways.
#include "tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/byte_alphabet.h"

namespace dsv4::tokenizer {

Result<Vocabulary> Vocabulary::Create(const std::vector<VocabEntry>& base,
                                      const std::vector<AddedToken>& added) {
  TokenId max_id = -1;
  for (const VocabEntry& entry : base) max_id = std::max(max_id, entry.id);
  for (const AddedToken& token : added) max_id = std::max(max_id, token.id);

  Vocabulary vocabulary;
  vocabulary.bytes_.resize(Index(max_id + 1));
  vocabulary.kinds_.resize(Index(max_id + 1), Kind::kNone);
  vocabulary.base_.reserve(base.size());
  for (const VocabEntry& entry : base) DSV4_TRY(vocabulary.AddBase(entry));
  for (const AddedToken& token : added) DSV4_TRY(vocabulary.AddAdded(token));
  return vocabulary;
}

Status Vocabulary::AddBase(const VocabEntry& entry) {
  if (const auto [it, is_new] = base_.emplace(entry.text, entry.id); !is_new) {
    return InvalidArgument(
        fmt::format("model.vocab entry \"{}\": given twice, as {} and {}; wanted distinct tokens", entry.text,
                    it->second, entry.id));
  }
  Kind& kind = kinds_[Index(entry.id)];
  if (kind != Kind::kNone) {
    return InvalidArgument(
        fmt::format("model.vocab entry \"{}\": id {} is already taken by the token of bytes \"{}\"",
                    entry.text, entry.id, bytes_[Index(entry.id)]));
  }
  kind = Kind::kBase;
  // A text outside the byte alphabet can be the result of no merge; it is kept as it stands, for decoding.
  bytes_[Index(entry.id)] = AlphabetToBytes(entry.text).value_or(entry.text);
  return {};
}

Status Vocabulary::AddAdded(const AddedToken& token) {
  if (const auto [it, is_new] = added_.emplace(token.content, token.id); !is_new) {
    return InvalidArgument(fmt::format("added_tokens \"{}\": given twice, with ids {} and {}", token.content,
                                       it->second, token.id));
  }
  const std::optional<TokenId> base_id = FindBase(token.content);
  if (base_id && *base_id != token.id) {
    return InvalidArgument(fmt::format("added_tokens \"{}\": got id {}, but model.vocab gives it {}",
                                       token.content, token.id, *base_id));
  }
  Kind& kind = kinds_[Index(token.id)];
  if (kind == Kind::kAdded || (kind == Kind::kBase && !base_id)) {
    return InvalidArgument(fmt::format("added_tokens \"{}\": id {} is already taken by \"{}\"", token.content,
                                       token.id, bytes_[Index(token.id)]));
  }
  kind = Kind::kAdded;
  bytes_[Index(token.id)] = token.content;
  return {};
}

std::optional<TokenId> Vocabulary::Find(std::string_view text) const {
  if (const auto it = added_.find(text); it != added_.end()) return it->second;
  return FindBase(text);
}

std::optional<TokenId> Vocabulary::FindBase(std::string_view alphabet_text) const {
  const auto it = base_.find(alphabet_text);
  if (it == base_.end()) return std::nullopt;
  return it->second;
}

}  // namespace dsv4::tokenizer
