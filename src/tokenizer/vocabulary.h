// Which ids exist and what they stand for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer_file.h"

namespace dsv4::tokenizer {

// Immutable after Create; safe to share between threads.
class Vocabulary {
 public:
  // Errors: InvalidArgument when two entries share a text or an id, or an added token contradicts the base
  // vocabulary. The same text and id in both is fine: real files have it.
  static Result<Vocabulary> Create(const std::vector<VocabEntry>& base, const std::vector<AddedToken>& added);

  // Id of a token by its text: added tokens as they stand in text, then base tokens in the byte alphabet.
  std::optional<TokenId> Find(std::string_view text) const;
  // The same among the base tokens alone.
  std::optional<TokenId> FindBase(std::string_view alphabet_text) const;

  // The bytes that `id` decodes to; empty when no token has this id, whatever its value. The view lives as
  // long as the vocabulary.
  std::string_view Bytes(TokenId id) const {
    return IsDefined(id) ? std::string_view(bytes_[Index(id)]) : "";
  }
  bool IsDefined(TokenId id) const { return id >= 0 && id < num_ids() && kinds_[Index(id)] != Kind::kNone; }
  bool IsAdded(TokenId id) const { return IsDefined(id) && kinds_[Index(id)] == Kind::kAdded; }

  // One more than the largest id.
  TokenId num_ids() const { return static_cast<TokenId>(bytes_.size()); }

 private:
  enum class Kind : uint8_t { kNone, kBase, kAdded };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using IdOfText = std::unordered_map<std::string, TokenId, Hash, std::equal_to<>>;

  static size_t Index(TokenId id) { return static_cast<size_t>(id); }
  Status AddBase(const VocabEntry& entry);
  Status AddAdded(const AddedToken& token);

  IdOfText base_;
  IdOfText added_;
  std::vector<std::string> bytes_;  // By id, as is kinds_.
  std::vector<Kind> kinds_;
};

}  // namespace dsv4::tokenizer
