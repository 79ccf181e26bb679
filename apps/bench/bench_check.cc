// Check in front of a benchmark: ops and logits of the first layers against the reference backend.
#include "apps/bench/bench_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "apps/shared/expert_flags.h"
#include "backend/reference/reference_backend.h"
#include "diag/checks/compare_check.h"
#include "diag/live_run.h"
#include "diag/statistics.h"
#include "diag/subject.h"
#include "kv/random_rows.h"

namespace dsv4::apps {
namespace {

// Two window layers, one of each compressed kind: every op takes part. The reference backend takes some
// seconds for it.
constexpr int64_t kLayers = 4;
constexpr int64_t kPrefillTokens = 16;
constexpr int64_t kDecodeSteps = 2;
constexpr int64_t kBatch = 2;
// Each op alone keeps the bounds of diag/compare_check.h. Errors add up over the layers: FP8 rounding turns a
// last bit into a step of the FP8 grid, and at depth into other chosen entries. Two correct runs of a random
// model of Flash's shape agree to 0.990 on a CPU and 0.989 on an H200 at depth 8192. Those of a smaller shape
// agree to 0.9997. So the bound is that of accumulated errors there, 0.2 of a row's length; without rounding
// they stay together.
constexpr double kMinCosineRelease = 0.98;
constexpr double kMinCosinePlain = 0.99999;

// The first layers of the model on one backend.
struct Part {
  std::unique_ptr<diag::HookedBackend> backend;
  std::unique_ptr<model::Model> model;

  diag::Subject subject() const { return {*model, *backend}; }
};

Result<Part> LoadPart(const ModelSource& source, const model::ModelOptions& options, ops::Backend backend) {
  DSV4_ASSIGN_OR_RETURN(model::ModelConfig config, source.Config());
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const io::Checkpoint> checkpoint, source.Checkpoint());
  model::ModelOptions of_part = options;
  DSV4_ASSIGN_OR_RETURN(of_part.token_classes, source.TokenClasses(config));
  Part part = {.backend = std::make_unique<diag::HookedBackend>(std::move(backend)), .model = nullptr};
  DSV4_ASSIGN_OR_RETURN(part.model, model::Model::FromCheckpoint(std::move(config), std::move(checkpoint),
                                                                 part.backend->backend(), of_part));
  return part;
}

std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab_size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
  return tokens;
}

// Logits of decode steps of a batch at `depth`, a row after the other.
Result<std::vector<std::vector<float>>> DecodeAt(int64_t depth, const Part& part) {
  std::vector<kv::SequenceState> states;
  for (uint64_t i = 0; i < kBatch; ++i) {
    DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, part.model->NewSequence());
    DSV4_TRY(kv::FillWithRandomRows(state, depth, i));
    states.push_back(std::move(state));
  }
  std::vector<std::vector<float>> logits;
  for (int64_t step = 0; step < kDecodeSteps; ++step) {
    const std::vector<int32_t> tokens =
        RandomTokens(kBatch, part.model->config().vocab_size, static_cast<uint32_t>(step));
    std::vector<model::SequenceChunk> chunks;
    for (size_t i = 0; i < states.size(); ++i) {
      chunks.push_back({.state = &states[i], .tokens = std::span(tokens).subspan(i, 1)});
    }
    DSV4_ASSIGN_OR_RETURN(const model::StepOutput output, part.model->Step(chunks));
    for (size_t i = 0; i < states.size(); ++i) {
      const std::span<const float> row = output.Row(i, 0);
      logits.emplace_back(row.begin(), row.end());
    }
  }
  return logits;
}

Status CheckOps(const Part& ours, const Part& reference) {
  const std::vector<int32_t> tokens = RandomTokens(kPrefillTokens, ours.model->config().vocab_size, 11);
  diag::LiveRun other(reference.subject(), tokens);
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const diag::CheckReport report,
      diag::CheckCompare(ours.subject(), tokens, other,
                         {.mode = diag::CompareMode::kSharedInputs, .same_contract = true, .bound = {}}));
  if (report.verdict == diag::Verdict::kPass) return {};
  return Internal(fmt::format("check against the reference backend: {}", report.headline));
}

}  // namespace

Result<BenchCheck> CheckAgainstReference(const ModelSource& source, const ModelFlags& flags,
                                         const ops::Backend& backend, int64_t depth) {
  const auto begin = std::chrono::steady_clock::now();
  model::ModelOptions options = MakeModelOptions(flags);
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, source.Config());
  const int64_t limit = flags.max_layers > 0 ? flags.max_layers : config.num_hidden_layers;
  options.max_layers = std::min({kLayers, limit, config.num_hidden_layers});
  model::ModelOptions of_ours = options;
  if (flags.backend == "cuda") {
    DSV4_ASSIGN_OR_RETURN(const model::DeviceRoom room, DeviceRoomOf(flags, backend.name));
    DSV4_ASSIGN_OR_RETURN(const auto checkpoint, source.Checkpoint());
    DSV4_ASSIGN_OR_RETURN(
        of_ours.experts, SplitOf(flags, config, checkpoint, options, {}, room, source.synthetic(), &backend));
  }
  DSV4_ASSIGN_OR_RETURN(const Part ours, LoadPart(source, of_ours, backend));
  DSV4_ASSIGN_OR_RETURN(const Part reference,
                        LoadPart(source, options, backend::MakeReferenceBackend(NumThreads(flags))));
  DSV4_TRY(CheckOps(ours, reference));

  DSV4_ASSIGN_OR_RETURN(const auto got, DecodeAt(depth, ours));
  DSV4_ASSIGN_OR_RETURN(const auto want, DecodeAt(depth, reference));
  BenchCheck check = {.backend = backend.name,
                      .layers = options.max_layers,
                      .prefill_tokens = kPrefillTokens,
                      .depth = depth,
                      .worst_cosine = 1};
  for (size_t i = 0; i < got.size(); ++i) {
    const double cosine = diag::Cosine(got[i], want[i]);
    check.worst_cosine = cosine >= check.worst_cosine ? check.worst_cosine : cosine;  // NaN is the worst.
    check.worst_error = std::max(check.worst_error, diag::RelativeError(got[i], want[i]));
  }
  check.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double bound = options.numerics == model::Numerics::kPlain ? kMinCosinePlain : kMinCosineRelease;
  if (!(check.worst_cosine >= bound)) {
    return Error(
        Internal(fmt::format("check against the reference backend, decode at depth {}: worst cosine of a row "
                             "of logits {}, want at least {}",
                             depth, check.worst_cosine, bound)));
  }
  return check;
}

}  // namespace dsv4::apps
