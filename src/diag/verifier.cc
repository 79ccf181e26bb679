// Background thread that computes sampled decode steps on the reference backend and judges the error of the
// logits.
#include "diag/verifier.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "diag/statistics.h"
#include "kv/snapshot.h"

namespace dsv4::diag {
namespace {

// Error that one layer may do to the logits; layers err independently, so their errors add up as squares do.
// Release: some 16 roundings to bf16 in a row, each of at most 2^-8. Plain: fp32 sums of thousands of terms
// in another order.
constexpr double kLayerErrorRelease = 0x1p-6;
constexpr double kLayerErrorPlain = 0x1p-16;

constexpr std::chrono::milliseconds kAskAgain(50);

// Yields to the threads that compute the answers. It can only fail to be nicer.
void LowerPriority() { (void)::setpriority(PRIO_PROCESS, 0, 10); }  // Priority of this thread, on Linux.

// No sign of drift: one step less is judged.
bool IsLackOfMemory(const Status& status) { return status.code() == StatusCode::kResourceExhausted; }

// Bytes of its own: a state and its snapshots are one thread's.
Result<std::vector<std::byte>> Serialized(const kv::SequenceState& state, uint64_t recipe) {
  DSV4_ASSIGN_OR_RETURN(const kv::Snapshot snapshot, state.Snapshot());
  return snapshot.Serialize(recipe);
}

// ||a - b|| / ||b||
double StepError(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double delta = static_cast<double>(a[i]) - b[i];
    difference += delta * delta;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace

std::string_view VerifyVerdictName(VerifyVerdict verdict) {
  switch (verdict) {
    case VerifyVerdict::kClean:
      return "clean";
    case VerifyVerdict::kDrift:
      return "drift";
    case VerifyVerdict::kTooFewSteps:
      return "too few steps";
  }
  return "";
}

VerifyVerdict VerifySummary::verdict() const {
  if (!status.ok() || num_unlike > 0) return VerifyVerdict::kDrift;
  if (num_verified < kMinVerified) return VerifyVerdict::kTooFewSteps;
  return 2 * num_past_bound > num_verified ? VerifyVerdict::kDrift : VerifyVerdict::kClean;
}

std::string ToText(const VerifySummary& summary) {
  std::string text = fmt::format("verify: {}: {} of {} computed again, {} dropped",
                                 VerifyVerdictName(summary.verdict()), summary.num_verified,
                                 Counted(summary.num_sampled, "sampled decode step"), summary.num_dropped);
  if (summary.num_verified > 0) {
    text += fmt::format(
        "; relative error of the logits mean {:.2g}, largest {:.2g} at position {}, {} past {:.2g}; KL mean "
        "{:.2g}, largest {:.2g} nats; another top-1 in {}",
        summary.mean_error, summary.worst_error, summary.worst_step.position, summary.num_past_bound,
        summary.bound, summary.mean_kl, summary.worst_kl, summary.num_top1_changed);
  }
  if (!summary.status.ok()) text += "; " + summary.status.message();
  if (summary.verdict() == VerifyVerdict::kDrift) text += "; next: dsv4 diagnose all";
  return text;
}

Verifier::Verifier(std::unique_ptr<model::Model> reference, const VerifierOptions& options)
    : reference_(std::move(reference)), options_(options) {
  DSV4_CHECK(options_.every >= 1 && options_.max_queued >= 1) << options_.every << options_.max_queued;
  const bool plain = reference_->options().numerics == model::Numerics::kPlain;
  summary_.bound = (plain ? kLayerErrorPlain : kLayerErrorRelease) *
                   std::sqrt(static_cast<double>(reference_->num_layers()));
  thread_ = std::thread([this] { Run(); });
}

Verifier::~Verifier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void Verifier::BeforeDecode(engine::RequestId request, const kv::SequenceState& state, int32_t token) {
  {
    const std::lock_guard lock(mutex_);
    if (summary_.num_decoded++ % options_.every != 0) return;
    ++summary_.num_sampled;
    if (queue_.size() + taken_.size() >= options_.max_queued || !summary_.status.ok()) {
      ++summary_.num_dropped;
      return;
    }
  }
  Result<std::vector<std::byte>> bytes = Serialized(state, reference_->recipe());
  if (bytes) {
    taken_.push_back(
        {.step = {request, state.length()}, .token = token, .state = std::move(*bytes), .logits = {}});
    return;
  }
  const std::lock_guard lock(mutex_);
  ++summary_.num_dropped;
  if (!IsLackOfMemory(bytes.error()))
    summary_.status = bytes.error().WithContext("verify: copying the state");
}

void Verifier::AfterDecode(engine::RequestId request, std::span<const float> logits) {
  const auto found = std::find_if(taken_.begin(), taken_.end(),
                                  [&](const Sample& sample) { return sample.step.request == request; });
  if (found == taken_.end()) return;
  Sample sample = std::move(*found);
  taken_.erase(found);
  sample.logits.assign(logits.begin(), logits.end());
  {
    const std::lock_guard lock(mutex_);
    if (logits.empty()) {
      ++summary_.num_dropped;
      return;
    }
    queue_.push_back(std::move(sample));
  }
  changed_.notify_all();
}

VerifySummary Verifier::Finish(const std::function<bool()>& interrupted) {
  std::unique_lock lock(mutex_);
  while (busy_ || !queue_.empty()) {
    changed_.wait_for(lock, kAskAgain);
    if (!interrupted || !interrupted()) continue;
    summary_.num_dropped += static_cast<int64_t>(queue_.size());
    queue_.clear();
    break;  // Not even for the one that is being computed: it counts in a later summary.
  }
  return summary_;
}

VerifySummary Verifier::Summary() {
  const std::lock_guard lock(mutex_);
  return summary_;
}

void Verifier::Run() {
  LowerPriority();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const Sample sample = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    try {
      const Result<std::vector<float>> want = Recompute(sample);
      lock.lock();
      Record(sample, want);
    } catch (const std::bad_alloc&) {  // One step less.
      if (!lock.owns_lock()) lock.lock();
      ++summary_.num_dropped;
    }
    busy_ = false;
    changed_.notify_all();
  }
}

Result<std::vector<float>> Verifier::Recompute(const Sample& sample) {
  DSV4_ASSIGN_OR_RETURN(const kv::Snapshot snapshot,
                        reference_->DeserializeSnapshot(sample.state, reference_->recipe()));
  DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, reference_->NewSequence());
  DSV4_TRY(state.Restore(snapshot));
  const model::SequenceChunk chunk = {.state = &state, .tokens = std::span(&sample.token, 1)};
  DSV4_ASSIGN_OR_RETURN(const model::StepOutput output, reference_->Step(std::span(&chunk, 1)));
  return std::vector<float>(output.logits.begin(), output.logits.end());
}

void Verifier::Record(const Sample& sample, const Result<std::vector<float>>& want) {
  if (!want) {
    ++summary_.num_dropped;
    if (summary_.status.ok() && !IsLackOfMemory(want.error()))
      summary_.status = want.error().WithContext("verify: the reference");
    return;
  }
  const bool finite = AllFinite(sample.logits) && AllFinite(*want);
  const double infinity = std::numeric_limits<double>::infinity();
  const double error = finite ? StepError(sample.logits, *want) : infinity;
  const double kl = finite ? SoftmaxKl(*want, sample.logits) : infinity;
  sum_error_ += error;
  sum_kl_ += kl;
  const auto count = static_cast<double>(++summary_.num_verified);
  summary_.mean_error = sum_error_ / count;
  summary_.mean_kl = sum_kl_ / count;
  summary_.worst_kl = std::max(summary_.worst_kl, kl);
  if (summary_.num_verified == 1 || error > summary_.worst_error) {
    summary_.worst_error = error;
    summary_.worst_step = sample.step;
  }
  summary_.num_past_bound += error > summary_.bound ? 1 : 0;
  summary_.num_unlike += error >= 1 ? 1 : 0;
  summary_.num_top1_changed += ArgMax(sample.logits) == ArgMax(*want) ? 0 : 1;
}

}  // namespace dsv4::diag
