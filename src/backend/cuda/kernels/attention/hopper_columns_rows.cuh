// hopper_cluster_columns.cu: how its shared memory is laid out, and what brings queries, keys and columns of
// values there.
#pragma once

#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/cluster_barrier.cuh"
#include "backend/cuda/kernels/attention/attention_keys.cuh"
#include "backend/cuda/kernels/attention/hopper_packed_rows.cuh"
#include "backend/cuda/lowering/device_limits.h"
#include "backend/cuda/lowering/select/attention.h"

namespace dsv4::backend::cuda::columns {

using namespace hopper;  // NOLINT(google-build-using-namespace): what this kernel shares with two others.

inline constexpr int kMostTiles = static_cast<int>(kMaxColumnsTiles);
// Two warpgroups bring rows: each half of those that come, in turns, and a share of the registers of 128 a
// thread.
inline constexpr int kBringers = 2;
inline constexpr int kThreads = kConsumers + kBringers * kProducers;
inline constexpr int kRegistersOfBringer = 48;
inline constexpr int kRegistersOfConsumer =
    (128 * kThreads - kBringers * kProducers * kRegistersOfBringer) / kConsumers;
static_assert(kRegistersOfConsumer % 8 == 0);

// Warpgroup of a producer, and its warp there.
__device__ __forceinline__ int BringerOf(int thread) { return (thread - kConsumers) / kProducers; }
__device__ __forceinline__ int WarpOfBringer(int thread) { return thread % kProducers / 32; }
static_assert(kConsumers % kProducers == 0);

inline constexpr int kHalves = 2;  // Halves of 64 rows' columns: what comes by itself.
inline constexpr int kSumBytes = kHeads * static_cast<int>(sizeof(float));

// How shared memory is laid out. First: queries, two tiles of keys, and some room. When all logits are known:
// weights of the block's own tiles (kBlockBytes each, StoreWeightsOfThreads), and behind them their sums,
// which other blocks read. Columns of values come to slots, which are counted from the end; a slot that lies
// among keys waits for those to have been used.
inline constexpr int kKeysBegin = kRowsBytes;
inline constexpr int kRoomBegin = 3 * kRowsBytes;
inline constexpr int kPlaceBytes = kRoomBegin + 2 * kBlockBytes;
inline constexpr int kMostSlots = 16;
inline constexpr int kMostPackedSlots = 12;  // Beside scales there is room for no more.

// Sizes that follows from the number of a cluster's blocks.
template <int kBlocks, bool kPacked>
struct Cut {
  static constexpr int kColumns = kDim / kBlocks;                         // A block's.
  static constexpr int kGroups = kColumns >= 2 * kCols ? 2 : 1;           // Warpgroups that have values,
  static constexpr int kGroupColumns = kColumns / kGroups;                // and how many columns each.
  static constexpr int kSlotBytes = kGroupColumns / kCols * kBlockBytes;  // Such columns of a tile.
  static constexpr int kMostTilesOfGroup = (kMostTiles + 2 * kBlocks - 1) / (2 * kBlocks);

  static constexpr int SlotBegin(int slot) { return kPlaceBytes - (slot + 1) * kSlotBytes; }
  // A block's, at most.
  static constexpr __host__ __device__ __forceinline__ int OwnTiles(int num_tiles) {
    return (num_tiles + kBlocks - 1) / kBlocks;
  }
  // As many as there is room for behind weights and sums; queries stay until all logits are known.
  static __device__ __forceinline__ int NumSlots(int num_tiles) {
    const int begin = max(OwnTiles(num_tiles) * (kBlockBytes + kSumBytes), kKeysBegin);
    return min((kPlaceBytes - begin) / kSlotBytes, kPacked ? kMostPackedSlots : kMostSlots);
  }
  static_assert((kPlaceBytes - OwnTiles(kMostTiles) * (kBlockBytes + kSumBytes)) / kSlotBytes >= kBringers);
  static_assert(SlotBegin(0) >= kRoomBegin);
};

// Position of a fill of slots, and how often the slot was filled before. Each bringing warpgroup has every
// other fill and every other slot. If slots changed hands, a warpgroup would wait for one whose last phase it
// has not seen. Parity does not tell two phases apart.
struct FillPlace {
  int slot;
  int round;
};
__device__ __forceinline__ FillPlace PlaceOfFill(int fill, int num_slots) {
  const int of = fill % kBringers;
  const int own = (num_slots - of + kBringers - 1) / kBringers;
  const int i = fill / kBringers;
  return {.slot = i % own * kBringers + of, .round = i / own};
}

// Scales of packed rows, of each four columns' blocks that begin at a multiple of four: of halves of keys,
// and of slots.
template <bool kPacked>
struct Scales {};
template <>
struct Scales<true> {
  uint32_t of_keys[2][kHalves][kKeys];
  uint32_t of_slots[kMostPackedSlots][kKeys];
};

template <int kBlocks, bool kPacked>
struct Shared {
  unsigned char place[kPlaceBytes];
  const uint16_t* rows[kMostTiles * kKeys];  // Null behind the last key.
  float maxima[kBlocks][2][kHeads];          // Maxima of each block's warpgroups.
  uint64_t q_full[kHalves];
  uint64_t keys_full[2][kHalves];
  uint64_t keys_empty[2];
  uint64_t slot_full[kMostSlots];
  uint64_t slot_empty[kMostSlots];
  uint64_t maxima_came;
  uint64_t weights_came[kMostTiles];
  [[no_unique_address]] Scales<kPacked> scales;
};
static_assert(sizeof(Shared<8, false>) <= DeviceLimits().shared_bytes);
static_assert(sizeof(Shared<8, true>) <= DeviceLimits().shared_bytes);

// Work of a block: tiles rank, rank + kBlocks, ... of a token.
struct Item {
  int64_t token;
  int first_head;
  int num_heads;
  int num_keys;
  int num_tiles;
  int rank;
  int num_own;  // Its tiles'.
};

// --- Producers -------------------------------------------------------------------------------------------------------

// Rows whose addresses are looked up before any of them is asked for: compilers do not move that across
// copies.
inline constexpr int kLookedUp = 4;

// Half of the columns of 64 rows by a warpgroup, 16 rows a warp; row_of(i) is null where there is none:
// zeros.
template <typename RowOf>
__device__ __forceinline__ void CopyHalf(unsigned char* rows, int half, const RowOf& row_of,
                                         const void* any) {
  const int warp = WarpOfBringer(static_cast<int>(threadIdx.x));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  static_assert(kDim / kHalves / 8 == 32);  // A piece a lane.
  const uint32_t to = SharedAddress(rows) + (half * 4 + lane / 8) * kBlockBytes;
#pragma unroll
  for (int begin = 0; begin < 16; begin += kLookedUp) {
    const uint16_t* from[kLookedUp];
#pragma unroll
    for (int i = 0; i < kLookedUp; ++i) from[i] = row_of(warp * 16 + begin + i);
#pragma unroll
    for (int i = 0; i < kLookedUp; ++i) {
      const bool exists = from[i] != nullptr;
      CopyAsync16(to + PieceOfLine(warp * 16 + begin + i, lane % kLinePieces),
                  exists ? static_cast<const void*>(from[i] + half * (kDim / kHalves) + lane * 8) : any,
                  exists);
    }
  }
}

// Columns [first_column, first_column + kColumns) of 64 rows to a slot.
template <int kColumns>
__device__ __forceinline__ void CopyColumns(unsigned char* slot, const uint16_t* const* rows,
                                            int first_column, const void* any) {
  constexpr int kPieces = kColumns / 8;
  constexpr int kRowsAtOnce = 32 / kPieces;
  const int warp = WarpOfBringer(static_cast<int>(threadIdx.x));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int piece = lane % kPieces;
  const uint32_t to = SharedAddress(slot) + piece / 8 * kBlockBytes;
  constexpr int kTimes = 16 / kRowsAtOnce;
  constexpr int kBefore = std::min(kTimes, kLookedUp);
#pragma unroll
  for (int begin = 0; begin < kTimes; begin += kBefore) {
    const uint16_t* from[kBefore];
    const int first_row = warp * 16 + begin * kRowsAtOnce + lane / kPieces;
#pragma unroll
    for (int i = 0; i < kBefore; ++i) from[i] = rows[first_row + i * kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kBefore; ++i) {
      const bool exists = from[i] != nullptr;
      CopyAsync16(to + PieceOfLine(first_row + i * kRowsAtOnce, piece % kLinePieces),
                  exists ? static_cast<const void*>(from[i] + first_column + piece * 8) : any, exists);
    }
  }
}

// Blocks [first_block, first_block + kCount) of 64 packed rows, 16 rows a warp, and the word of scales that
// has theirs. Where a lane's rows lie is looked up first.
template <int kCount, typename RowOf>
__device__ __forceinline__ void CopyPacked(unsigned char* to, uint32_t (&scales)[kKeys], int first_block,
                                           const RowOf& row_of, const void* any) {
  static_assert(4 % kCount == 0 && 32 / kCodePieces == 8 && kLinePieces == 8);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = WarpOfBringer(static_cast<int>(threadIdx.x)) * 16;
  const auto bytes_of = [&](int row) {
    return reinterpret_cast<const unsigned char*>(row_of(first_row + row));
  };
  const uint32_t begin = SharedAddress(to) + first_row * kLineBytes;
  const auto copy = [&](uint32_t line, const unsigned char* row, int at) {
    CopyAsync16(line, row != nullptr ? static_cast<const void*>(row + at) : any, row != nullptr);
  };
  const unsigned char* const of_scales = bytes_of(lane % 16);
  // Codes: four lanes a row, eight rows at once.
  const unsigned char* const first = bytes_of(lane / 4);
  const unsigned char* const second = bytes_of(8 + lane / 4);
  const uint32_t line = begin + PieceOfLine(lane / 4, lane % 4);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = (first_block + i) * kReleaseRowGroup + lane % 4 * 16;
    if (first_block + i >= kCodedBlocks) break;
    copy(line + i * kBlockBytes, first, at);
    copy(line + i * kBlockBytes + 8 * kLineBytes, second, at);
  }
  // Columns without codes: eight lanes a row. It is the last block.
  if (first_block + kCount > kCodedBlocks) {
    const unsigned char* rows[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) rows[r] = bytes_of(4 * r + lane / 8);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      copy(begin + (kCount - 1) * kBlockBytes + PieceOfLine(4 * r + lane / 8, lane % 8), rows[r],
           kReleaseRowCoded + lane % 8 * 16);
    }
  }
  if (lane < 16) {
    CopyAsync4(SharedAddress(&scales[first_row + lane]),
               of_scales != nullptr
                   ? static_cast<const void*>(of_scales + kReleaseRowScales + first_block / 4 * 4)
                   : any,
               of_scales != nullptr);
  }
}

__device__ __forceinline__ uint2 LoadShared8(uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void StoreShared16(uint32_t address, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// The same, by the warps that have brought them: eight lanes a row, four rows at once. Neighbouring groups of
// four rows differ in one bit of where their pieces lie.
template <int kCount>
__device__ __forceinline__ void WidenPacked(unsigned char* of, const uint32_t (&scales)[kKeys],
                                            int first_block) {
  constexpr int kRows = 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int piece = lane % kLinePieces;
  const int row = WarpOfBringer(static_cast<int>(threadIdx.x)) * 16 + lane / kLinePieces;
  constexpr uint32_t kOther = 4 * 16;
  static_assert(32 / kLinePieces == 4);
  __syncwarp();
  uint32_t of_rows[kRows];
  uint32_t rare_scales = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    of_rows[r] = scales[row + 4 * r];
    // Bytes of kFirstLargeE8m0 at least: 128, and 7 more.
    static_assert(kFirstLargeE8m0 == 135);
    rare_scales |= ((of_rows[r] & 0x7F7F7F7FU) + 0x79797979U) & of_rows[r] & 0x80808080U;
  }
  uint32_t from = SharedAddress(of) + PieceOfLine(row, piece / 2) + piece % 2 * 8;
  uint32_t to = SharedAddress(of) + PieceOfLine(row, piece);
  uint32_t byte = 0x4040U + first_block % 4 * 0x101U;  // Scale words, into both halves.
#pragma unroll 1
  for (int i = 0; i < kCount; ++i, from += kBlockBytes, to += kBlockBytes, byte += 0x101U) {
    if (first_block + i >= kCodedBlocks) break;
    uint2 codes[kRows];
    uint32_t rare = rare_scales;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      codes[r] = LoadShared8((r % 2 == 0 ? from : from ^ kOther) + r * 4 * kLineBytes);
#pragma unroll
    for (int r = 0; r < kRows; ++r) rare |= NaNsOfE4m3(codes[r]);
    __syncwarp();
    const auto store = [&](int r, const uint4& wide) {
      StoreShared16((r % 2 == 0 ? to : to ^ kOther) + r * 4 * kLineBytes, wide);
    };
    if (rare != 0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) store(r, WidenE4m3(codes[r], __byte_perm(of_rows[r], 0, byte) & 0xFFU));
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        store(r, TimesFactors(codes[r], __byte_perm(of_rows[r], 0, byte) * 128 + 120 * 128 * 0x10001U));
    }
  }
}

// Producer of rows for a block: halves of its tiles, and slots. A warpgroup has every other of them. Packed
// ones widen when they have come, a few behind those that are asked for. Before a producer waits for room, it
// finishes all that it has asked for, since others may wait for that.
template <int kBlocks, bool kPacked>
class Bringing {
 public:
  using C = Cut<kBlocks, kPacked>;
  __device__ Bringing(Shared<kBlocks, kPacked>& m, const AttentionParams& p, const Item& item)
      : m_(m),
        any_(p.q),
        item_(item),
        num_slots_(C::NumSlots(item.num_tiles)),
        bringer_(BringerOf(static_cast<int>(threadIdx.x))) {}

  // This warpgroup's half of tile number i of the block's, to the buffer of the even or odd ones. Of packed
  // ones only the first few may come before Rest.
  template <typename RowOf>
  __device__ __forceinline__ void Tile(int i, const RowOf& row_of) {
    static_assert(kHalves == kBringers);
    if constexpr (kPacked) {
      CopyPacked<4>(HalfOfKeys(i % 2), m_.scales.of_keys[i % 2][bringer_], bringer_ * 4, row_of, any_);
      Asked(kTile | i % 2);
    } else {
      CopyHalf(m_.place + kKeysBegin + i % 2 * kRowsBytes, bringer_, row_of, any_);
      ArriveWhenCopied(&m_.keys_full[i % 2][bringer_]);
    }
  }

  // Everything but the first two tiles. Code that asks for a kind of rows stands once, and so does code that
  // finishes it. Four warpgroups fetch different code here, and it should stay in the caches of instructions.
  __device__ __forceinline__ void Rest() {
    const int num_fills = item_.num_tiles * C::kGroups;
    // Copies that need not wait for keys to be used come before further tiles do.
    constexpr int kRoomSlots = (kPlaceBytes - kRoomBegin) / C::kSlotBytes;
    const int num_early = item_.num_own > 2 ? min(min(kRoomSlots, num_slots_), num_fills) : 0;
    const int num_odd = item_.num_own / 2;
    const int num_even = item_.num_own - num_odd;
    int tile = 2;
    // Fills of slots: this block's columns of all tiles, those of one consumer after the other's
    // (PlaceOfFill).
    int fill = bringer_;
    int slot = bringer_;
    int round = 0;
#pragma unroll 1
    while (true) {
      const bool is_tile = tile < item_.num_own && fill >= num_early;
      const bool is_fill = !is_tile && fill < num_fills;
      // Phase that must have passed before.
      Phase used = {nullptr, 0};
      Phase used_too = {nullptr, 0};
      if (is_tile) {
        used = {&m_.keys_empty[tile % 2], (tile / 2 - 1) & 1};
      } else if (is_fill && round > 0) {
        used = {&m_.slot_empty[slot], (round - 1) & 1};
      } else if (is_fill) {
        // Slots go down through the odd tiles' buffer to that of the even ones.
        const int begin = C::SlotBegin(slot);
        if (begin < kRoomBegin && num_odd > 0) used = {&m_.keys_empty[1], (num_odd - 1) & 1};
        if (begin < kRoomBegin - kRowsBytes && num_even > 0)
          used_too = {&m_.keys_empty[0], (num_even - 1) & 1};
      }
      if constexpr (kPacked) {
        const bool asks =
            (is_tile || is_fill) && num_asked_ < kInFlight && used.HasEnded() && used_too.HasEnded();
        if (!__all_sync(kWholeWarp, asks)) {
          if (num_asked_ > 0) {
            FinishFirst();
            continue;
          }
        }
      }
      if (!is_tile && !is_fill) return;
      used.Wait();
      used_too.Wait();
      if (is_tile) {
        const uint16_t* const* const rows = m_.rows + (item_.rank + tile * kBlocks) * kKeys;
        Tile(tile, [&](int row) { return rows[row]; });
        ++tile;
      } else {
        Fill(fill, slot);
        fill += kBringers;
        slot += kBringers;
        if (slot >= num_slots_) {
          slot = bringer_;
          ++round;
        }
      }
    }
  }

 private:
  // A barrier's, or none.
  struct Phase {
    uint64_t* barrier;
    int parity;
    __device__ __forceinline__ bool HasEnded() const {
      return barrier == nullptr || HasPhase(barrier, static_cast<uint32_t>(parity));
    }
    __device__ __forceinline__ void Wait() const {
      if (barrier != nullptr) WaitForPhase(barrier, static_cast<uint32_t>(parity));
    }
  };
  // Request in a byte: kTile and whether it is an odd one, or a slot and whose columns.
  static constexpr uint32_t kTile = 0x80;
  static constexpr int kInFlight = 4;
  static_assert(2 * kMostSlots <= static_cast<int>(kTile) && 8 * kInFlight <= 32 && C::kGroups <= 2);

  __device__ unsigned char* HalfOfKeys(int odd) const {
    return m_.place + kKeysBegin + odd * kRowsBytes + bringer_ * (kRowsBytes / kHalves);
  }
  __device__ int FirstColumn(int group) const { return item_.rank * C::kColumns + group * C::kGroupColumns; }
  __device__ __forceinline__ void Fill(int fill, int slot) {
    const int group = fill % C::kGroups;
    const uint16_t* const* const rows = m_.rows + fill / C::kGroups * kKeys;
    if constexpr (kPacked) {
      CopyPacked<C::kGroupColumns / kCols>(
          m_.place + C::SlotBegin(slot), m_.scales.of_slots[slot], FirstColumn(group) / kCols,
          [&](int row) { return rows[row]; }, any_);
      Asked(static_cast<uint32_t>(slot * 2 + group));
    } else {
      CopyColumns<C::kGroupColumns>(m_.place + C::SlotBegin(slot), rows, FirstColumn(group), any_);
      ArriveWhenCopied(&m_.slot_full[slot]);
    }
  }
  __device__ __forceinline__ void Asked(uint32_t what) {
    CommitCopies();
    asked_ |= what << (8 * num_asked_++);
  }
  // Oldest request; the others are still on their way.
  __device__ __forceinline__ void FinishFirst() {
    switch (num_asked_) {
      case 1:
        WaitForCopies<0>();
        break;
      case 2:
        WaitForCopies<1>();
        break;
      case 3:
        WaitForCopies<2>();
        break;
      default:
        static_assert(kInFlight == 4);
        WaitForCopies<3>();
    }
    --num_asked_;
    const uint32_t what = asked_ & 0xFFU;
    asked_ >>= 8;
    uint64_t* full;
    if ((what & kTile) != 0) {
      const auto odd = static_cast<int>(what & 1U);
      WidenPacked<4>(HalfOfKeys(odd), m_.scales.of_keys[odd][bringer_], bringer_ * 4);
      full = &m_.keys_full[odd][bringer_];
    } else {
      const auto slot = static_cast<int>(what / 2);
      WidenPacked<C::kGroupColumns / kCols>(m_.place + C::SlotBegin(slot), m_.scales.of_slots[slot],
                                            FirstColumn(static_cast<int>(what % 2)) / kCols);
      full = &m_.slot_full[slot];
    }
    PublishToMatrixSteps();
    Arrive(full);
  }

  Shared<kBlocks, kPacked>& m_;
  const void* const any_;
  const Item& item_;
  const int num_slots_;
  const int bringer_;
  uint32_t asked_ = 0;  // A byte each, the first in the lowest.
  int num_asked_ = 0;
};

// Queries and the first two tiles, whose rows a warp looks up by itself, one a lane.
template <int kBlocks, bool kPacked>
__device__ __forceinline__ void BringFirst(Shared<kBlocks, kPacked>& m, Bringing<kBlocks, kPacked>& bring,
                                           const AttentionParams& p, const Item& item, const KeyRows& keys) {
  const auto* const q =
      static_cast<const uint16_t*>(p.q) + (item.token * p.num_heads + item.first_head) * kDim;
  const int half = BringerOf(static_cast<int>(threadIdx.x));
  CopyHalf(
      m.place, half, [&](int head) { return head < item.num_heads ? q + head * kDim : nullptr; }, p.q);
  ArriveWhenCopied(&m.q_full[half]);
  const int warp = WarpOfBringer(static_cast<int>(threadIdx.x));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int key = (item.rank + lane / 16 * kBlocks) * kKeys + warp * 16 + lane % 16;
  const uint16_t* const row = key < item.num_keys ? keys.template Row<uint16_t>(key) : nullptr;
#pragma unroll 1
  for (int i = 0; i < min(item.num_own, 2); ++i) {
    bring.Tile(i, [&](int r) {
      return reinterpret_cast<const uint16_t*>(
          __shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(row), i * 16 + r % 16));
    });
  }
}

}  // namespace dsv4::backend::cuda::columns
