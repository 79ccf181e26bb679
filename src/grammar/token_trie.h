// The vocabulary as a tree over bytes, and which tokens fit into a terminal.
//
// Made once for a tokenizer and shared by all grammars and sequences; thread-safe. Added tokens are no text:
// each stands in the tree as one byte that no UTF-8 text has. A grammar can thereby ask for the marker of a
// tag, and text can never be mistaken for one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/dfa.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::grammar {

using tokenizer::TokenId;

// Which ids may come next. A bit a token, bit i % 64 of word i / 64.
class TokenMask {
 public:
  explicit TokenMask(int64_t num_ids) : num_ids_(num_ids), words_(static_cast<size_t>((num_ids + 63) / 64)) {}

  int64_t num_ids() const { return num_ids_; }
  void Clear() { words_.assign(words_.size(), 0); }
  void Allow(TokenId id) { words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); }
  void Forbid(TokenId id) { words_[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64)); }
  bool IsAllowed(TokenId id) const {
    return id >= 0 && id < num_ids_ && ((words_[static_cast<size_t>(id) / 64] >> (id % 64)) & 1) != 0;
  }
  int64_t Count() const;
  bool IsNone() const {
    return std::ranges::all_of(words_, [](uint64_t word) { return word == 0; });
  }
  std::span<const uint64_t> words() const { return words_; }
  std::span<uint64_t> words() { return words_; }

 private:
  int64_t num_ids_;
  std::vector<uint64_t> words_;
};

// The bytes of added tokens. Ordinary tokens with bytes from here on are in no grammar: no text has them.
inline constexpr uint8_t kThinkEndByte = 0xF8;     // Markers::think_end.
inline constexpr uint8_t kCallMarkerByte = 0xF9;   // Markers::dsml.
inline constexpr uint8_t kOtherMarkerByte = 0xFA;  // Any other.

// The added tokens that grammars ask for; -1: the tokenizer has none.
struct Markers {
  TokenId think_end = -1;
  TokenId dsml = -1;
};

class TokenTrie {
 public:
  // InvalidArgument when a byte has no token of its own (then some text could not be written).
  static Result<std::shared_ptr<const TokenTrie>> Create(const tokenizer::Tokenizer& tokenizer,
                                                         const Markers& markers = {});

  // In depth-first order; node 0 is the root.
  struct Node {
    uint32_t subtree_end;  // One behind the last node below this one.
    uint32_t first_token;  // Index into tokens(); those of this node end where the next node's begin.
    uint32_t depth;        // Bytes from the root.
    uint8_t byte;          // Leads here from the parent.
  };
  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  std::span<const TokenId> TokensOf(uint32_t node) const {
    return {tokens_.data() + nodes_[node].first_token, tokens_.data() + nodes_[node + 1].first_token};
  }
  std::span<const uint8_t> BytesOf(TokenId id) const;
  int64_t num_ids() const { return static_cast<int64_t>(bytes_.size()); }
  // The longest token that `bytes` begin with; -1: none.
  TokenId LongestPrefix(std::string_view bytes) const;

  // Fit of the tokens in a terminal's state.
  struct Fit {
    std::vector<TokenId> few;    // Tokens whose bytes all fit in the terminal; of many, `many` has the bits.
    std::vector<uint64_t> many;  // Empty, or a word for 64 ids.
    std::vector<uint32_t>
        exits;  // Nodes below the root where the terminal may end, with longer tokens below them.
  };
  // From the cache, or by one walk over the tree.
  std::shared_ptr<const Fit> FitOf(const Dfa& dfa, uint32_t state) const;

 private:
  // A node with a token below or at it that is not plain.
  struct RestNode {
    uint32_t node;
    uint32_t subtree_end;  // As Node's, in rest_.
  };
  TokenTrie() = default;
  void SortOutPlainTokens();
  // How many plain characters in a row fit in a terminal, whichever they are: kAllPlain, or so many and not
  // one more. 0: it is not as simple as that.
  static constexpr uint32_t kAllPlain = UINT32_MAX;
  uint32_t PlainReach(const Dfa& dfa, uint32_t state) const;
  Fit Walk(const Dfa& dfa, uint32_t state) const;

  std::vector<Node> nodes_;  // And one more behind the last, for its tokens' end.
  std::vector<TokenId> tokens_;
  size_t longest_ = 0;                       // Bytes of a token.
  std::vector<std::vector<uint8_t>> bytes_;  // By id; empty for ids without a token.
  // Plain tokens are whole characters that almost every string takes alike: none that JSON or a tag gives a
  // meaning. By their number of characters; plain_ends_[n] is one behind the last of at most n.
  std::vector<TokenId> plain_;
  std::vector<size_t> plain_ends_;
  std::vector<RestNode> rest_;  // In depth-first order; the first is the root.

  using Key = std::pair<Dfa::Fingerprint, uint32_t>;
  mutable std::mutex mutex_;
  mutable std::map<Key, std::shared_ptr<const Fit>> cache_;
  mutable size_t cached_bytes_ = 0;
};

}  // namespace dsv4::grammar
