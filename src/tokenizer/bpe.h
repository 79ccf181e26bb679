// Byte-pair encoding of one piece. It starts from one token per byte and merges the adjacent pair of lowest
// rank, leftmost first, until no pair is in the table.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocabulary.h"

namespace dsv4::tokenizer {

// Immutable after Create; safe to share between threads.
class Bpe {
 public:
  struct Merge {
    uint32_t rank;   // kNoRank: the pair does not merge.
    TokenId merged;  // The token that replaces the pair.
  };
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  // InvalidArgument when a byte has no token, a pair is given twice, or a merge names or makes a token
  // outside of the vocabulary.
  static Result<Bpe> Create(const Vocabulary& vocabulary, const std::vector<MergeRule>& merges);

  // Appends the ids of `piece` (any bytes, below 2^31 of them). O(n^2) with a small constant for short pieces,
  // O(n log n) for long ones, which are read in windows: 1 MiB of memory, however long. Appends at least
  // one more than `max_ids` where there are more, but not all.
  void Encode(std::string_view piece, std::vector<TokenId>* ids, size_t max_ids = SIZE_MAX) const;

  // The same for a long piece at once, which needs 32 bytes of memory for each of its own.
  void EncodeWindow(std::string_view piece, std::vector<TokenId>* ids) const;

  Merge Find(TokenId left, TokenId right) const;
  TokenId ByteToken(unsigned char byte) const { return byte_tokens_[byte]; }

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };

  void EncodeShort(std::string_view piece, std::vector<TokenId>* ids) const;
  void EncodeLong(std::string_view piece, size_t max_ids, std::vector<TokenId>* ids) const;
  bool EncodeByWindows(std::string_view piece, size_t window_bytes, size_t max_ids,
                       std::vector<TokenId>* ids) const;
  bool StandSideBySide(TokenId left, TokenId right, std::string_view text) const;
  size_t HomeSlot(uint64_t pair) const;
  bool Insert(uint64_t pair, Merge merge);

  std::array<TokenId, 256> byte_tokens_{};
  std::vector<uint32_t> num_bytes_;  // By token.
  // Open addressing with linear probing, at most half full.
  std::vector<Slot> slots_;
  int shift_ = 0;
};

}  // namespace dsv4::tokenizer
