// The ids that end a generation, resolved from strings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer {

// A value; owns its strings.
class StopSet {
 public:
  struct Entry {
    TokenId id;
    std::string text;
  };

  StopSet() = default;
  // End of sentence, and the user marker: a model that opens the user's turn has ended its own.
  static StopSet ForChat(const SpecialTokens& tokens);

  // Adds the token whose whole text is `token`; one that is in the set already changes nothing.
  // Errors: NotFound when the tokenizer has no such token (a stop text of several tokens is no stop token).
  Status Add(const Tokenizer& tokenizer, std::string_view token);

  bool Contains(TokenId id) const;
  // In the order added.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void Insert(TokenId id, std::string_view text);
  std::vector<Entry> entries_;
};

}  // namespace dsv4::tokenizer
