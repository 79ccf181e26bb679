// Snapshot: an immutable copy of a SequenceState. It is cheap to make, since it shares memory with the state.
// It can travel as bytes, so that a prefix can be kept on disk.
//
// The bytes hold only the rows that are needed to continue, and to take back the tokens that Serialize was
// asked for. They are far fewer than the rings have slots. All numbers are little-endian:
//
// | offset | bytes | field                                                              |
// | 0      | 8     | magic "DSV4STAT"                                                   |
// | 8      | 4     | version, 3                                                         |
// | 12     | 4     | header bytes, 72                                                   |
// | 16     | 8     | CacheLayout::GeometryFingerprint                                   |
// | 24     | 8     | origin: the producer of the rows                                   |
// | 32     | 8     | length in tokens                                                   |
// | 40     | 8     | tokens that can be taken back                                      |
// | 48     | 8     | payload bytes, a function of layout, length and the field before   |
// | 56     | 8     | XXH3-64 of the payload                                             |
// | 64     | 8     | XXH3-64 of bytes 0 .. 63                                           |
// | 72     |       | payload, rows as they are stored: per layer the needed rows of each ring in order of RingKind, ascending positions, then all rows of
// |        |       | each paged store in order of PageKind. Then the needed token classes, 4 bytes each, where the layout looks back |
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kv/sequence_state.h"

namespace dsv4::kv {

// Bytes that Serialize writes of a sequence of `length` tokens that can be taken back by `rewind_tokens`.
int64_t SnapshotBytes(const CacheLayout& layout, int64_t length, int64_t rewind_tokens);

class Snapshot {
 public:
  int64_t length() const { return state_->length(); }

  // Copies the rows to the host. What is read back can be taken back by max_rewind_tokens, or by less where
  // the state itself cannot. Another thread than the state's may call this while no thread destroys the
  // snapshot: what it holds never changes. ResourceExhausted or a device's error; FailedPrecondition for a
  // state that is not whole; Unimplemented for a state with a journal, whose copies in other processes have
  // the rest of it.
  // `origin`: the producer of the rows, all that their numbers follow from (model::Model::Origin).
  Result<std::vector<std::byte>> Serialize(uint64_t origin, int64_t max_rewind_tokens = 0) const;

  // A sequence that goes on from here; shares the memory.
  SequenceState Continue() const { return SequenceState(*state_); }

  // `bytes` may come from anywhere. DataLoss for damaged bytes, Unimplemented for another version,
  // InvalidArgument for a state of another origin or geometry. OutOfRange for one that is longer, or can be
  // taken back further, than the layout allows.
  static Result<Snapshot> Deserialize(std::span<const std::byte> bytes, uint64_t origin,
                                      std::shared_ptr<const CacheLayout> layout, Memory& memory,
                                      Stream stream);

 private:
  friend class SequenceState;
  explicit Snapshot(std::shared_ptr<const SequenceState> state) : state_(std::move(state)) {}
  // How many of the last `at_most` tokens can be taken back.
  int64_t RewindableTokens(int64_t at_most) const;

  std::shared_ptr<const SequenceState> state_;
};

}  // namespace dsv4::kv
