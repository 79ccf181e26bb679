// compressor_pool against the stateless definition (model.md 6.1), however the tokens are cut into steps.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "tests/parity/backends.h"
#include "tests/parity/cached_rows.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

struct Kind {
  int64_t ratio;
  bool overlap;
  int64_t width;

  int64_t row() const { return overlap ? 2 * width : width; }
};
const Kind kCsa = {4, true, 6};
const Kind kHca = {128, false, 5};
const Kind kOdd = {3, true, 4};
// As wide as the release's, and a little wider; and more tokens than a block of the CUDA backend takes at
// once.
const Kind kWideCsa = {4, true, 512};
const Kind kWiderCsa = {4, true, 516};
const Kind kIndexer = {4, true, 128};
const Kind kEight = {8, false, 130};
const Kind kLong = {150, true, 9};

// A sequence's tokens, from position 0.
struct Tokens {
  std::vector<double> values;  // [num_tokens, row]
  std::vector<double> scores;
};

Tokens MakeTokens(const Kind& kind, int64_t num_tokens, uint32_t seed) {
  Random random(seed);
  return {Rounded(DType::kF32, random.Normals(num_tokens * kind.row(), 2.0)),
          Rounded(DType::kF32, random.Normals(num_tokens * kind.row(), 3.0))};
}

std::vector<double> MakeApe(const Kind& kind) {
  Random random(99);
  return Rounded(DType::kF32, random.Normals(kind.ratio * kind.row()));
}

// All entries of the sequence, straight from the definition, plus the sum of the terms' magnitudes.
struct Entries {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

Entries Definition(const Kind& kind, const Tokens& tokens, const std::vector<double>& ape) {
  Entries entries;
  const int64_t num_tokens = static_cast<int64_t>(tokens.values.size()) / kind.row();
  for (int64_t j = 0; j < num_tokens / kind.ratio; ++j) {
    for (int64_t c = 0; c < kind.width; ++c) {
      double weighted = 0;
      double magnitude = 0;
      double total = 0;
      // Tokens of the previous block use channel c, the block's own channel width + c (with overlap).
      for (int64_t t = (kind.overlap ? j - 1 : j) * kind.ratio; t < (j + 1) * kind.ratio; ++t) {
        if (t < 0) continue;
        const int64_t channel = kind.overlap && t >= j * kind.ratio ? kind.width + c : c;
        const size_t i = static_cast<size_t>(t * kind.row() + channel);
        const float score =
            static_cast<float>(tokens.scores[i]) +
            static_cast<float>(ape[static_cast<size_t>(t % kind.ratio * kind.row() + channel)]);
        const double weight = std::exp(static_cast<double>(score) - 20.0);
        weighted += weight * tokens.values[i];
        magnitude += weight * std::fabs(tokens.values[i]);
        total += weight;
      }
      entries.values.push_back(weighted / total);
      entries.magnitudes.push_back(magnitude / total);
    }
  }
  return entries;
}

// A sequence on its way through several steps.
struct Progress {
  Tokens tokens;
  int64_t position = 0;
  TestRing values;
  TestRing scores;
  std::vector<double> entries;

  Progress(const Kind& kind, int64_t num_tokens, uint32_t seed, int64_t capacity)
      : tokens(MakeTokens(kind, num_tokens, seed)),
        values(DType::kF32, capacity, kind.row()),
        scores(DType::kF32, capacity, kind.row()) {}
};

// One ragged step: `chunk[i]` tokens of sequence i.
void Step(const ops::Backend& backend, const Kind& kind, const std::vector<double>& ape,
          const std::vector<Progress*>& sequences, const std::vector<int64_t>& chunk, DType dtype) {
  std::vector<double> values;
  std::vector<double> scores;
  std::vector<ops::CompressorSequence> args;
  int64_t num_tokens = 0;
  int64_t num_entries = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Progress& sequence = *sequences[i];
    args.push_back({num_tokens, chunk[i], sequence.position, sequence.values.rows(), sequence.scores.rows()});
    const auto append = [&](std::vector<double>& to, const std::vector<double>& from) {
      const auto begin = from.begin() + sequence.position * kind.row();
      to.insert(to.end(), begin, begin + chunk[i] * kind.row());
    };
    append(values, sequence.tokens.values);
    append(scores, sequence.tokens.scores);
    num_tokens += chunk[i];
    num_entries += ops::NumCompletedEntries(sequence.position, chunk[i], kind.ratio);
  }
  const TestTensor value_tensor(DType::kF32, {num_tokens, kind.row()}, values);
  const TestTensor score_tensor(DType::kF32, {num_tokens, kind.row()}, scores);
  const TestTensor ape_tensor(DType::kF32, {kind.ratio, kind.row()}, ape);
  TestTensor pooled(dtype, {num_entries, kind.width});
  const Status status = backend.table.compressor_pool(
      *backend.context, {value_tensor, score_tensor, ape_tensor, pooled, kind.ratio, kind.overlap, args});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(pooled.GuardsIntact());
  const std::vector<double> entries = pooled.Values();
  auto next = entries.begin();
  for (size_t i = 0; i < sequences.size(); ++i) {
    Progress& sequence = *sequences[i];
    const int64_t count = ops::NumCompletedEntries(sequence.position, chunk[i], kind.ratio) * kind.width;
    sequence.entries.insert(sequence.entries.end(), next, next + count);
    next += count;
    sequence.position += chunk[i];
    EXPECT_TRUE(sequence.values.tensor().GuardsIntact() && sequence.scores.tensor().GuardsIntact());
  }
}

// Runs a sequence in the given chunks, repeated until its tokens are used up.
std::vector<double> RunChunks(const ops::Backend& backend, const Kind& kind, const std::vector<double>& ape,
                              int64_t num_tokens, const std::vector<int64_t>& chunks, DType dtype,
                              int64_t extra_capacity) {
  const int64_t capacity = std::max<int64_t>(1, kind.ratio * (kind.overlap ? 2 : 1) - 1) + extra_capacity;
  Progress sequence(kind, num_tokens, 7, capacity);
  for (size_t i = 0; sequence.position < num_tokens; ++i) {
    Step(backend, kind, ape, {&sequence},
         {std::min(chunks[i % chunks.size()], num_tokens - sequence.position)}, dtype);
  }
  return sequence.entries;
}

TEST(CompressorPoolParity, AnyCutGivesTheStatelessEntriesBitForBit) {
  for (const Kind& kind : {kCsa, kHca, kOdd}) {
    const std::vector<double> ape = MakeApe(kind);
    const int64_t r = kind.ratio;
    for (const int64_t num_tokens : {r - 1, r, r + 1, 2 * r - 1, 2 * r, 4 * r + 2, 3 * r + r / 2}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const std::vector<double> whole =
            RunChunks(Reference(), kind, ape, num_tokens, {num_tokens}, dtype, 0);
        const Entries want = Definition(kind, MakeTokens(kind, num_tokens, 7), ape);
        ExpectRounded(dtype, whole, want.values, want.magnitudes, "compressor_pool");
        // Resumed half-way, at every offset of a block, by single tokens, across several blocks; a larger
        // ring must not matter.
        const std::vector<std::vector<int64_t>> cuts = {{1},    {r - 1, 1},  {r}, {r + 1},
                                                        {2, r}, {r / 2 + 1}, {7}, {37}};
        for (const std::vector<int64_t>& chunks : cuts) {
          for (const int64_t extra : {0, 1, 5}) {
            EXPECT_EQ(RunChunks(Reference(), kind, ape, num_tokens, chunks, dtype, extra), whole)
                << "ratio " << r << ", " << num_tokens << " tokens, chunks of " << chunks[0] << ", ring + "
                << extra;
          }
        }
        for (const FastBackend& fast : FastBackends()) {
          EXPECT_EQ(RunChunks(fast.three_threads, kind, ape, num_tokens, {r + 1}, dtype, 0), whole)
              << fast.three_threads.name;
        }
        for (const ops::Backend& candidate : Candidates()) {
          EXPECT_EQ(RunChunks(candidate, kind, ape, num_tokens, {r + 1}, dtype, 0), whole) << candidate.name;
        }
      }
    }
  }
}

// Rings that have room for what they keep and for the step's rows beside it, and rings that do not.
TEST(CompressorPoolParity, FastBackendsGiveTheJudgesBits) {
  for (const Kind& kind : {kCsa, kHca, kOdd, kWideCsa, kWiderCsa, kIndexer, kEight, kLong}) {
    const std::vector<double> ape = MakeApe(kind);
    const int64_t r = kind.ratio;
    const int64_t num_tokens = 3 * r + 2;
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const std::vector<double> whole = RunChunks(Reference(), kind, ape, num_tokens, {num_tokens}, dtype, 0);
      for (const std::vector<int64_t>& chunks :
           std::vector<std::vector<int64_t>>{{num_tokens}, {r - 1, 1}, {r + 1, 2}, {2 * r + 1, 1}}) {
        for (const int64_t extra : {int64_t{0}, int64_t{1}, r, 2 * r}) {
          for (const FastBackend& fast : FastBackends()) {
            EXPECT_EQ(RunChunks(fast.three_threads, kind, ape, num_tokens, chunks, dtype, extra), whole)
                << fast.three_threads.name << ", ratio " << r << ", width " << kind.width << ", chunks of "
                << chunks[0] << ", ring + " << extra;
          }
        }
      }
    }
  }
}

// Sequences at other places of a block, some of which complete entries; one token each, and several.
TEST(CompressorPoolParity, FastBackendsGiveTheJudgesBitsOfRaggedBatches) {
  for (const Kind& kind : {kWideCsa, kHca}) {
    const std::vector<double> ape = MakeApe(kind);
    const std::vector<int64_t> lengths = {kind.ratio - 1, 1, 2 * kind.ratio - 1, 3 * kind.ratio, 0};
    const auto run = [&](const ops::Backend& backend, int64_t extra_capacity) {
      std::vector<std::unique_ptr<Progress>> sequences;
      std::vector<Progress*> pointers;
      for (size_t i = 0; i < lengths.size(); ++i) {
        sequences.push_back(std::make_unique<Progress>(kind, lengths[i] + 20, static_cast<uint32_t>(i),
                                                       2 * kind.ratio - 1 + extra_capacity));
        pointers.push_back(sequences.back().get());
      }
      Step(backend, kind, ape, pointers, lengths, DType::kBF16);
      for (int i = 0; i < 5; ++i) Step(backend, kind, ape, pointers, {1, 1, 1, 1, 1}, DType::kBF16);
      Step(backend, kind, ape, pointers, {5, 0, 9, 1, 2}, DType::kBF16);
      std::pair<std::vector<std::vector<double>>, std::vector<std::vector<std::byte>>> all;
      for (const Progress* sequence : pointers) {
        all.first.push_back(sequence->entries);
        // Rows that were never written, too.
        all.second.push_back(sequence->values.tensor().Bytes());
        all.second.push_back(sequence->scores.tensor().Bytes());
      }
      return all;
    };
    for (const int64_t extra : {0, 64}) {
      const auto want = run(Reference(), extra);
      for (const FastBackend& fast : FastBackends())
        EXPECT_EQ(run(fast.three_threads, extra) == want, true) << fast.three_threads.name << ", " << extra;
    }
  }
}

TEST(CompressorPoolParity, RaggedBatchEqualsEachSequenceAlone) {
  for (const Kind& kind : {kCsa, kHca}) {
    const std::vector<double> ape = MakeApe(kind);
    const std::vector<int64_t> lengths = {0, 1, 127, 128, 129, 300};
    const auto run = [&](bool together) {
      std::vector<std::unique_ptr<Progress>> sequences;
      std::vector<Progress*> pointers;
      for (size_t i = 0; i < lengths.size(); ++i) {
        sequences.push_back(
            std::make_unique<Progress>(kind, lengths[i] + 9, static_cast<uint32_t>(i), 2 * kind.ratio));
        pointers.push_back(sequences.back().get());
      }
      const std::vector<int64_t> second = {5, 0, 9, 1, 2, 7};
      if (together) {
        Step(Reference(), kind, ape, pointers, lengths, DType::kBF16);
        Step(Reference(), kind, ape, pointers, second, DType::kBF16);
      } else {
        for (size_t i = 0; i < lengths.size(); ++i) {
          Step(Reference(), kind, ape, {pointers[i]}, {lengths[i]}, DType::kBF16);
          Step(Reference(), kind, ape, {pointers[i]}, {second[i]}, DType::kBF16);
        }
      }
      std::vector<std::vector<double>> entries;
      for (const Progress* sequence : pointers) entries.push_back(sequence->entries);
      return entries;
    };
    EXPECT_EQ(run(true), run(false));
  }
}

TEST(CompressorPoolParity, RingHoldsTheLastRowsWithApe) {
  const Kind kind = kCsa;
  const std::vector<double> ape = MakeApe(kind);
  Progress sequence(kind, 21, 7, 8);
  Step(Reference(), kind, ape, {&sequence}, {21}, DType::kF32);
  const std::vector<double> values = sequence.values.tensor().Values();
  const std::vector<double> scores = sequence.scores.tensor().Values();
  for (int64_t p = 13; p < 21; ++p) {
    for (int64_t c = 0; c < kind.row(); ++c) {
      const size_t slot = static_cast<size_t>(p % 8 * kind.row() + c);
      const size_t token = static_cast<size_t>(p * kind.row() + c);
      EXPECT_EQ(values[slot], sequence.tokens.values[token]);
      const float sum = static_cast<float>(sequence.tokens.scores[token]) +
                        static_cast<float>(ape[static_cast<size_t>(p % 4 * kind.row() + c)]);
      EXPECT_EQ(scores[slot], static_cast<double>(sum));
    }
  }
}

// The first block has no predecessor: whatever a reused ring still holds must not matter.
TEST(CompressorPoolParity, StaleRowsOfAnEarlierSequenceAreNotRead) {
  const Kind kind = kCsa;
  const std::vector<double> ape = MakeApe(kind);
  Progress used(kind, 9, 1, 7);
  Step(Reference(), kind, ape, {&used}, {9}, DType::kF32);
  used.position = 0;
  used.entries.clear();
  for (int i = 0; i < 9; ++i) Step(Reference(), kind, ape, {&used}, {1}, DType::kF32);
  Progress fresh(kind, 9, 1, 7);
  Step(Reference(), kind, ape, {&fresh}, {9}, DType::kF32);
  EXPECT_EQ(used.entries, fresh.entries);
}

TEST(CompressorPoolParity, LargeScoresDoNotOverflow) {
  const Kind kind = {2, false, 1};
  Progress sequence(kind, 2, 1, 1);
  sequence.tokens.scores = {3e4, -3e4};
  sequence.tokens.values = {1.25, 100.0};
  Step(Reference(), kind, {0.0, 0.0}, {&sequence}, {2}, DType::kF32);
  EXPECT_EQ(sequence.entries, std::vector<double>{1.25});
}

// field-lessons.md A2: ratio, overlap and every ape row take part.
TEST(CompressorPoolMutation, EveryArgumentMatters) {
  const std::vector<double> ape = MakeApe(kCsa);
  const std::vector<double> base = RunChunks(Reference(), kCsa, ape, 24, {24}, DType::kF32, 0);
  for (size_t i = 0; i < ape.size(); ++i) {
    std::vector<double> mutated = ape;
    mutated[i] += 1.0;
    EXPECT_NE(RunChunks(Reference(), kCsa, mutated, 24, {24}, DType::kF32, 0), base) << i;
  }
  const Kind no_overlap = {4, false, 12};
  EXPECT_NE(RunChunks(Reference(), no_overlap, ape, 24, {24}, DType::kF32, 0), base);
  const Kind other_ratio = {2, true, 6};
  const std::vector<double> half_ape(ape.begin(), ape.begin() + 24);
  EXPECT_NE(RunChunks(Reference(), other_ratio, half_ape, 24, {24}, DType::kF32, 0), base);
}

}  // namespace
}  // namespace dsv4::test
