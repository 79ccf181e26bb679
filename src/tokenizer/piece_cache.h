// Remembers the ids of short pieces: most pieces of a text are words seen before.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/token_id.h"

namespace dsv4::tokenizer {

// Direct-mapped and of fixed size: a new piece takes the slot of the old one with its hash. 2 MiB. Not
// thread-safe.
class PieceCache {
 public:
  PieceCache() : slots_(kNumSlots) {}

  // Calls compute(piece, ids), which appends the ids of `piece`, unless they are known.
  template <typename Compute>
  void Append(std::string_view piece, std::vector<TokenId>* ids, const Compute& compute) {
    if (piece.size() > kMaxPieceBytes) return compute(piece, ids);
    Slot& slot = slots_[XXH3_64bits(piece.data(), piece.size()) % kNumSlots];
    if (slot.num_bytes == piece.size() && std::memcmp(slot.bytes.data(), piece.data(), piece.size()) == 0) {
      ids->insert(ids->end(), slot.ids.begin(), slot.ids.begin() + slot.num_ids);
      return;
    }
    const size_t first = ids->size();
    compute(piece, ids);
    const std::span<const TokenId> computed = std::span(*ids).subspan(first);
    if (computed.size() > kMaxIds) return;
    slot.num_bytes = static_cast<uint8_t>(piece.size());
    slot.num_ids = static_cast<uint8_t>(computed.size());
    std::memcpy(slot.bytes.data(), piece.data(), piece.size());
    std::memcpy(slot.ids.data(), computed.data(), computed.size_bytes());
  }

 private:
  static constexpr size_t kNumSlots = 1 << 15;
  static constexpr size_t kMaxPieceBytes = 30;
  static constexpr size_t kMaxIds = 8;

  struct Slot {             // One cache line.
    uint8_t num_bytes = 0;  // 0: empty. No piece is.
    uint8_t num_ids = 0;
    std::array<char, kMaxPieceBytes> bytes;
    std::array<TokenId, kMaxIds> ids;
  };
  static_assert(sizeof(Slot) == 64);

  std::vector<Slot> slots_;
};

}  // namespace dsv4::tokenizer
