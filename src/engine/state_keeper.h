// StateKeeper: states that are kept for reuse, in memory and on disk, and the bytes of those that run.
//
// A model that borrows from its files goes on with other numbers when one is changed. From then on nothing is kept or reused.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine_core.h"
#include "engine/prefix_store.h"

namespace dsv4::engine {

// A request whose prompt shares at least so much with one that is being read waits for that state instead of
// computing it too. Nor is an extra cut of a prompt worth less.
constexpr int64_t kWorthWaitingFor = 64;

class StateKeeper {
 public:
  // The core outlives it.
  explicit StateKeeper(EngineCore& core);

  bool enabled() const { return store_.enabled() && !gave_up_; }
  // Keeps what the sequence has read, on disk too.
  void Keep(Sequence& sequence);
  // The same if it is at one of the lengths that are wanted; at a checkpoint in memory only.
  void KeepIfWanted(Sequence& sequence);
  // A kept state to begin with; nullopt: none.
  std::optional<kv::SequenceState> Find(const Sequence& sequence);
  // Tokens that the sequence shares with any kept state.
  int64_t SharedLength(const Sequence& sequence) const;
  // Whether a state that this one could start from is on its way from the disk. One that has come is in the
  // store.
  bool WaitsForDisk(Sequence& sequence);
  // Looks after the disk, between steps.
  void Tidy();
  // Waits a little for the disk, if a sequence does.
  bool AwaitDisk();

  // Gives up the least that is kept, in memory or in what the disk is to write; false when there is nothing.
  bool Evict();
  bool EvictState() { return store_.EvictOne(); }
  // All states in memory.
  void Clear() { store_.Clear(); }
  std::vector<uint64_t> Blocks() const { return store_.Blocks(); }

  int64_t BytesOf(const Sequence& sequence) const;
  int64_t RunningBytes() const;
  // Bytes and counts, into the stats.
  void Count(EngineStats& stats) const;

 private:
  // Whether the model is the one that kept states are of. Else gives them up for good, with a warning.
  bool Trusts();

  EngineCore& core_;
  PrefixStore store_;
  bool gave_up_ = false;
};

}  // namespace dsv4::engine
