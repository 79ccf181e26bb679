// Verifier: computes sampled decode steps of a running engine once more on a reference model, in a thread of
// its own. It measures how far the logits are off. It starts from a copy of the sequence's state. It measures
// the step's own error: ops, weights as the backend repacked them, reading the cache. Wrong rows that earlier
// steps left in the state are on both sides. The checks decode-prefill and compare find those.
//
// The engine waits for one thing only: the copy of the state (StateBytes of it), made when there is room in
// the queue. A sample that finds the queue full is dropped and counted.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/step_watcher.h"
#include "model/runtime/model.h"

namespace dsv4::diag {

struct VerifierOptions {
  int64_t every = 1;      // The first decode token and every so many-th after it.
  size_t max_queued = 4;  // Samples that wait; each holds a state and a row of logits.
};

// A decode step, for people.
struct VerifiedStep {
  engine::RequestId request = 0;
  int64_t position = 0;  // Position of the token that the step read.
};

enum class VerifyVerdict : uint8_t {
  kClean,
  // More than half of the steps are past the bound, or the reference failed. Or one step has nothing in
  // common with the reference (an error of 1, not finite). One step alone may be past the bound: rounding
  // flips an expert in a near-tie.
  kDrift,
  kTooFewSteps,  // Neither: fewer than kMinVerified.
};
std::string_view VerifyVerdictName(VerifyVerdict verdict);  // "clean", "drift", "too few steps"

struct VerifySummary {
  static constexpr int64_t kMinVerified = 4;

  int64_t num_decoded = 0;   // Decode tokens that the engine computed.
  int64_t num_sampled = 0;   // Steps that were to be verified: verified, dropped, or not done yet.
  int64_t num_verified = 0;  // Computed again.
  int64_t num_dropped = 0;   // No room, the wait for them was ended, or their step or the reference failed.
  // The error of a step is ||ours - reference|| / ||reference|| of its logits; infinite if one is not finite.
  double bound = 0;
  int64_t num_past_bound = 0;
  int64_t num_unlike = 0;  // With an error of 1 or more.
  double mean_error = 0;
  double worst_error = 0;
  VerifiedStep worst_step;
  double mean_kl = 0;  // KL(reference || ours) in nats.
  double worst_kl = 0;
  int64_t num_top1_changed = 0;  // Steps whose most probable token is another one.
  Status status;                 // The reference's first error; nothing is verified after it.

  VerifyVerdict verdict() const;
};
// One line: the verdict and the figures.
std::string ToText(const VerifySummary& summary);

class Verifier final : public engine::StepWatcher {
 public:
  // `reference` has the weights and the recipe (model::Model::recipe) of the model under test, and has no
  // other user. options.every and max_queued are at least 1.
  Verifier(std::unique_ptr<model::Model> reference, const VerifierOptions& options);
  // Ends the step that is being computed, drops the rest.
  ~Verifier() override;

  void BeforeDecode(engine::RequestId request, const kv::SequenceState& state, int32_t token) override;
  void AfterDecode(engine::RequestId request, std::span<const float> logits) override;

  // Waits until the queue is empty, or `interrupted` says that the wait is over; then the queue is dropped.
  // `interrupted` may be empty and is asked several times a second. More steps may follow.
  VerifySummary Finish(const std::function<bool()>& interrupted = {});
  // Findings so far. From any thread.
  VerifySummary Summary();

 private:
  struct Sample {
    VerifiedStep step;
    int32_t token = 0;
    std::vector<std::byte> state;  // kv::Snapshot::Serialize
    std::vector<float> logits;
  };

  void Run();
  // The reference's logits of the step.
  Result<std::vector<float>> Recompute(const Sample& sample);
  void Record(const Sample& sample, const Result<std::vector<float>>& want);

  std::unique_ptr<model::Model> reference_;
  VerifierOptions options_;
  std::vector<Sample> taken_;  // The engine's thread only: their step is not done.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sample> queue_;  // Guarded by mutex_, as what follows.
  bool busy_ = false;
  bool stop_ = false;
  double sum_error_ = 0;
  double sum_kl_ = 0;
  VerifySummary summary_;
  std::thread thread_;
};

}  // namespace dsv4::diag
