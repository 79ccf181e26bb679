// Accesses that an op declares that it reads and writes, and the one proof that two ops may share a launch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "backend/cuda/runtime/memory_range.h"

namespace dsv4::backend::cuda {

// How the blocks of a launch divide a range among themselves. Of two ops that divide the same range in the
// same way, each block touches only bytes that are its own in both.
enum class Division : uint8_t {
  kNone,           // Any block may touch any byte.
  kHeads,          // [tokens, heads, width] by token and head,
  kTokenColumns,   // [tokens, columns] by token and column,
  kFloatColumns,   // the same in fp32,
  kStreamColumns,  // [tokens, streams, columns] by token and column.
  kPost,           // hc_post's factors of a token: written when all blocks of the token have read them,
  kComb,           // as are these.
  // Ranks: a block that reads it waits for the one that writes it.
  kOfRank,       // Part that a rank gives to an all-gather,
  kOfAllRanks,   // and what that brings.
  kPartsOfRank,  // The same of an all-to-all of attention's parts.
  kPartsOfAllRanks,
};

struct Access {
  MemoryRange range;
  Division division = Division::kNone;
};

// A list without an allocation. An op has no more operands.
class AccessList {
 public:
  static constexpr size_t kMost = 8;
  AccessList() = default;
  AccessList(std::initializer_list<Access> accesses) {
    for (const Access& access : accesses) Add(access);
  }
  // Null or empty: nothing.
  void Add(const Access& access);
  const Access* begin() const { return accesses_.data(); }
  const Access* end() const { return accesses_.data() + size_; }

 private:
  std::array<Access, kMost> accesses_;
  size_t size_ = 0;
};

struct OpAccesses {
  AccessList reads;
  AccessList writes;
};

// Whether blocks of the two ops may run in any order beside each other. Neither writes memory that the other
// reads or writes, except where both divide the very same bytes alike. Then a block that does first's part
// and next's part one after the other replaces two launches.
bool MayShareLaunch(const OpAccesses& first, const OpAccesses& next);

// Whether an op writes what any of its blocks reads. Such an op may run where each of its launches has all it
// reads before it writes, but not where blocks have got unequally far.
bool WritesWhatItReads(const OpAccesses& op);

}  // namespace dsv4::backend::cuda
