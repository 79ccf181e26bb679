// Sequences that look as if they had read many tokens: filled with random rows instead of by a prefill that would take
// minutes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/status.h"
#include "kv/sequence_state.h"

namespace dsv4::apps {

class RandomRows {
 public:
  // `memory` and `stream` are those the states were made with.
  RandomRows(Memory& memory, Stream stream, DType row_dtype);

  // Appends rows to an empty state up to `length` tokens: every row that the next tokens need, of the size that a model's
  // normed rows have and on the number grids that release numerics round them to (FP8; FP4 for the indexer's keys).
  // Different seeds give different rows. Errors are those of kv::SequenceState::BeginAppend.
  Status Fill(kv::SequenceState& state, int64_t length, uint64_t seed) const;

 private:
  using Bytes = std::vector<std::byte>;
  Status CopyRows(const Bytes& source, void* destination, int64_t num_rows, int64_t row_bytes,
                  std::mt19937_64& random) const;
  Status FillPages(const kv::SequenceState& state, std::mt19937_64& random) const;
  Status FillRings(const kv::SequenceState& state, int64_t length, std::mt19937_64& random) const;

  Memory& memory_;
  Stream stream_;
  Bytes rows_;  // Window rows and entries.
  Bytes keys_;  // The indexer's.
  Bytes raw_;   // F32 values and scores of compressors.
};

}  // namespace dsv4::apps
