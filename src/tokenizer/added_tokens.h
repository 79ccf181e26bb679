// Finding added tokens in text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer_file.h"

namespace dsv4::tokenizer {

// A half-open range of bytes.
struct ByteRange {
  size_t begin;
  size_t end;
};

struct AddedTokenMatch {
  ByteRange range;
  TokenId id;
};

// Immutable after construction; safe to share between threads.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  // All matches in `text` that lie inside one of `regions` (ascending, disjoint), in order of position.
  // Leftmost first, longest at each position. Tokens marked `normalized` are looked for in a second pass,
  // between the matches of the first. With no normalizer that is the only thing the mark means.
  std::vector<AddedTokenMatch> FindAll(std::string_view text, const std::vector<ByteRange>& regions) const;

 private:
  // A byte trie; its root is node 0.
  class Trie {
   public:
    Trie();
    void Insert(std::string_view text, TokenId id);
    bool empty() const { return edges_.empty(); }
    // The first match in text[range], the longest at its position.
    std::optional<AddedTokenMatch> FindFirst(std::string_view text, ByteRange range) const;

   private:
    std::array<bool, 256> is_first_byte_{};
    std::unordered_map<uint64_t, uint32_t> edges_;  // (node << 8 | byte) -> node
    std::vector<TokenId> id_of_node_;               // -1: no token ends here.
  };

  Trie raw_;
  Trie normalized_;
};

}  // namespace dsv4::tokenizer
