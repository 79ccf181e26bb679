// Snapshot: an immutable copy of a SequenceState, cheap to make (it shares memory with the state) and able to
// travel as bytes, so that a prefix can be kept on disk.
//
// The bytes hold only the rows that continuing needs: a snapshot read back can be continued but not rewound
// below its length. All numbers are little-endian:
//
// | offset | bytes | field                                                              |
// | 0      | 8     | magic "DSV4STAT"                                                   |
// | 8      | 4     | version, 1                                                         |
// | 12     | 4     | header bytes, 64                                                   |
// | 16     | 8     | CacheLayout::GeometryFingerprint                                   |
// | 24     | 8     | CacheLayout::model_fingerprint                                     |
// | 32     | 8     | length in tokens                                                   |
// | 40     | 8     | payload bytes, a function of layout and length                     |
// | 48     | 8     | XXH3-64 of the payload                                             |
// | 56     | 8     | XXH3-64 of bytes 0 .. 55                                           |
// | 64     |       | payload: per layer the needed rows of each ring in order of RingKind, ascending positions, then all rows of
// |        |       | each paged store in order of PageKind                              |
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kv/sequence_state.h"

namespace dsv4::kv {

class Snapshot {
 public:
  int64_t length() const { return state_->length(); }

  // Copies the rows to the host. ResourceExhausted or a device's error.
  Result<std::vector<std::byte>> Serialize() const;

  // `bytes` may come from anywhere. DataLoss for damaged bytes, Unimplemented for another version,
  // InvalidArgument for a state of another model or geometry, OutOfRange for one longer than the layout
  // allows.
  static Result<Snapshot> Deserialize(std::span<const std::byte> bytes,
                                      std::shared_ptr<const CacheLayout> layout, Memory& memory,
                                      Stream stream);

 private:
  friend class SequenceState;
  explicit Snapshot(std::shared_ptr<const SequenceState> state) : state_(std::move(state)) {}

  std::shared_ptr<const SequenceState> state_;
};

}  // namespace dsv4::kv
