// The timed runs of `dsv4 bench`: prefills of new sequences, decode steps of batches at a depth, and steps of
// several rows of one sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "apps/shared/bench_machine.h"
#include "apps/shared/sampling_threads.h"
#include "backend/cuda/cuda_backend.h"
#include "base/status.h"
#include "comm/observed_group.h"
#include "diag/hooked_backend.h"
#include "diag/op_profile.h"
#include "model/runtime/model.h"

namespace dsv4::apps {

struct BenchRow {
  std::string backend;
  bool prefill = false;
  bool ahead =
      false;  // Decode steps that choose their tokens on the backend, each queued before the one in front has ended.
  bool verify =
      false;  // Steps of `tokens` rows of each sequence, with the logits of all, as one that verifies drafts.
  int64_t depth = 0;                   // Tokens that each sequence holds before the first timed step.
  int64_t batch = 1;                   // Sequences.
  int64_t tokens = 1;                  // Per sequence and step.
  std::vector<double> seconds;         // Seconds of every timed step, greedy sampling included.
  std::vector<BenchMachine> machines;  // One behind each timed step.
  bool busy = false;  // Others had a part of the cores: fewer multiply-adds than the same threads can do.
  diag::OpCost cost;  // Cost of one step, the mean of those timed.
  std::vector<diag::OpTime> ops;  // With profiling: sums over profiled_steps steps.
  int64_t profiled_steps = 0;
  model::LayerRows layer_rows;  // A prefill's.
  // Counts over all timed steps: chosen experts of the tier `cached` that were on the GPU, and that were
  // brought.
  int64_t cache_hits = 0;
  int64_t cache_misses = 0;
  int64_t cache_bytes = 0;  // Bytes of the latter.
  // Counts over all timed steps: what the host was asked for whose experts it multiplies.
  backend::HostExpertCounters host;
  // Bytes of all timed steps of a model whose experts are on disk: bytes of chosen experts, and bytes that
  // the disk read. Behind them stands the disk's rate, in bytes a second. Zero: it is not such a model, or
  // the system does not say.
  int64_t disk_chosen = 0;
  int64_t disk_read = 0;
  int64_t disk_steps = 0;
  double disk_rate = 0;

  // Decode of one sequence on several ranks: a rank's bytes if no byte were on two of them and all had as
  // much; else 0.
  double bytes_without_replication = 0;

  // Share of misses among chosen cached experts; nothing where none was chosen.
  std::optional<double> MissShare() const {
    const int64_t chosen = cache_hits + cache_misses;
    if (chosen == 0) return std::nullopt;
    return static_cast<double>(cache_misses) / static_cast<double>(chosen);
  }
  double Median() const;  // Median of seconds.
  double Mean() const;    // The same.
  BenchMachine Machine() const { return apps::Median(machines); }
  // (slowest - fastest) / median.
  double Spread() const;
  double TokensPerSecond() const { return static_cast<double>(tokens * batch) / Median(); }
};

// Merges several measurements of the same row into one, with the steps of all of them. Measurements on a busy
// machine count only if there are no others. Not empty.
BenchRow Merge(std::vector<BenchRow> rows);

struct BenchRunOptions {
  int repeat = 5;  // Timed steps of a row at least, but for long prefills; at most kMaxRepeat.
  bool profile = false;
  uint64_t seed = 0;
  bool check =
      true;  // A row of a step is compared with a step of its own. Rank 0 alone (comm/loopback_group.h) makes none equal.
  std::shared_ptr<comm::ExchangeHooks> exchanges;  // Hooks of the model's group; null for one rank.
};
// Short steps are repeated more often. One warm-up step and the timed ones must be taken back again.
inline constexpr int kMaxRepeat = 60;
inline constexpr int64_t kMostVerifiedRows = 16;

class BenchRuns {
 public:
  // All borrowed; `model` was made on backend.backend() with max_rewind_tokens above kMaxRepeat.
  BenchRuns(model::Model& model, diag::HookedBackend& backend, const BenchMeter& meter,
            const BenchRunOptions& options);

  // `tokens` random tokens into an empty sequence, logits of the last. A pass of at most
  // ModelOptions::max_chunk_tokens warms up. Two timed runs are enough when they take ten seconds.
  Result<BenchRow> Prefill(int64_t tokens);

  // A pass of random tokens, which choose every expert, so that an expert cache is full.
  Status FillCache();

  // Prepares `batch` sequences of `depth` random rows for Decode.
  Status SetDepth(int64_t depth, int64_t batch);
  // Steps of one random token for each of the first `batch` sequences; the sequences are then as before.
  // Equal seeds give equal tokens. Internal error when the logits of the first or the last sequence differ
  // from those it gets alone.
  Result<BenchRow> Decode(int64_t batch);
  // As many steps in async scheduling, where the backend gains by it (model::Model::asynchronous): they read
  // what the ones in front chose, greedily. `decode`: the row that Decode has just made of this batch, whose
  // bytes and machine count for this one too.
  Result<BenchRow> DecodeAhead(const BenchRow& decode);

  // Steps of so many random tokens of the first sequence. All logits are read, as for a draft that is
  // verified. Every step is taken back. Internal error when a row's logits differ from those of a step of its
  // own.
  Result<BenchRow> Verify(int64_t rows);

  void DropSequences() { states_.clear(); }
  // Bytes of the sequences of the last SetDepth.
  int64_t state_bytes() const { return state_bytes_; }

 private:
  BenchRow NewRow() const;
  void Measure(BenchRow& row);
  void JudgeMachine(BenchRow& row) const;
  std::vector<int32_t> RandomTokens(int64_t count);
  // One step: a chunk for each state, and a greedy choice from each row.
  Result<model::StepOutput> Step(std::vector<kv::SequenceState>& states, int64_t first, int64_t batch,
                                 std::span<const int32_t> tokens);
  struct TierCounters {
    backend::ExpertCacheCounters cache;
    backend::HostExpertCounters host;
  };
  TierCounters Counters() const;
  // Requests of the row's timed steps to them.
  void NoteTiers(BenchRow& row, const TierCounters& before) const;
  Status Rewind(int64_t first, int64_t batch, int64_t steps);
  Result<model::StepOutput> VerifyStep(std::span<const int32_t> tokens);
  Status TimedVerifyStep(std::span<const int32_t> tokens);
  Status CheckAlone(int64_t index, std::span<const int32_t> tokens, std::span<const float> logits);

  SamplingThreads sampling_threads_;
  model::Model& model_;
  diag::HookedBackend& backend_;
  const BenchMeter& meter_;
  BenchRunOptions options_;
  std::mt19937_64 random_;
  std::vector<kv::SequenceState> states_;
  int64_t depth_ = 0;
  int64_t state_bytes_ = 0;
  double most_multiply_adds_ = 0;  // Most of all measurements so far.
};

}  // namespace dsv4::apps
