// `bench --acceptance`: timed steps of drafting and verifying at given rates of acceptance.
#include "apps/bench/bench_acceptance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>

#include "apps/shared/model_source.h"
#include "apps/terminal/load_bar.h"
#include "apps/terminal/terminal.h"
#include "base/json.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "diag/statistics.h"
#include "kv/random_rows.h"
#include "sampling/sampler.h"
#include "speculation/drafter.h"

namespace dsv4::apps {
namespace {

struct Measured {
  double serial = 0;     // Seconds of a token without drafts: median of the steps.
  double drafting = 0;   // Seconds of the draft block, a step,
  double verifying = 0;  // and of the step that verifies, with its sampling.
  double tokens = 0;     // A step, that were accepted or sampled behind those.
  double Ratio() const { return tokens * serial / (drafting + verifying); }
};

class AcceptanceBench {
 public:
  AcceptanceBench(model::Model& model, const AcceptanceBenchOptions& options, int64_t num_drafts)
      : model_(model), options_(options), num_drafts_(num_drafts), random_(options.seed) {}

  Result<Measured> Run() {
    Measured measured;
    DSV4_TRY(Serial(measured));
    DSV4_TRY(Speculative(measured));
    return measured;
  }

 private:
  static constexpr int kWarmUp = 5;

  Result<kv::SequenceState> Sequence() {
    DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, model_.NewSequence());
    DSV4_TRY(kv::FillWithRandomRows(state, options_.depth, options_.seed + 1));
    return state;
  }

  // Random ones: what a random model chooses soon runs in circles.
  int32_t Token() {
    return static_cast<int32_t>(random_() % static_cast<uint64_t>(model_.config().vocab_size));
  }

  Status Sample(const model::StepOutput& output, int64_t rows) {
    sampling::SamplingParams greedy;
    greedy.temperature = 0;
    sampling::Sampler sampler(greedy, {}, -1);
    for (int64_t row = 0; row < rows; ++row)
      DSV4_RETURN_IF_ERROR(Sampled(sampler.Sample(output.Row(0, row))));
    return {};
  }
  static Status Sampled(const Result<sampling::SampledToken>& token) {
    return token ? Status() : token.error();
  }

  // As the engine decodes without drafts: ahead, where the backend gains by it.
  Status Serial(Measured& measured) {
    DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState state, Sequence());
    std::vector<double> seconds;
    const bool ahead = model_.asynchronous() && model_.can_queue();
    std::unique_ptr<model::QueuedStep> now;
    for (int64_t step = 0; step < kWarmUp + options_.num_steps; ++step) {
      const Stopwatch stopwatch;
      const int32_t token = Token();
      if (ahead) {
        const model::DecodeChunk chunk{.state = &state, .token = token, .choice = {.temperature = 0}};
        DSV4_ASSIGN_OR_RETURN_STATUS(std::unique_ptr<model::QueuedStep> next,
                                     model_.QueueDecode(std::span(&chunk, 1), {}));
        if (now != nullptr) {
          DSV4_ASSIGN_OR_RETURN_STATUS(const auto chosen, now->Wait());
          static_cast<void>(chosen);
        }
        now = std::move(next);
      } else {
        const model::SequenceChunk chunk = {.state = &state, .tokens = std::span(&token, 1)};
        DSV4_ASSIGN_OR_RETURN_STATUS(const model::StepOutput output, model_.Step(std::span(&chunk, 1)));
        DSV4_RETURN_IF_ERROR(Sample(output, 1));
      }
      if (step >= kWarmUp) seconds.push_back(stopwatch.seconds());
    }
    if (now != nullptr) {
      DSV4_ASSIGN_OR_RETURN_STATUS(const auto last, now->Wait());
      static_cast<void>(last);
    }
    measured.serial = diag::Median(seconds);
    return {};
  }

  Status Speculative(Measured& measured) {
    DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState state, Sequence());
    std::vector<double> drafting;
    std::vector<double> verifying;
    int64_t num_tokens = 0;
    std::uniform_real_distribution<double> unit;
    for (int64_t step = 0; step < kWarmUp + options_.num_steps; ++step) {
      model::DraftChunk draft{.state = &state, .token = Token()};
      draft.choices.resize(static_cast<size_t>(num_drafts_), {.temperature = 0});
      const Stopwatch stopwatch;
      DSV4_ASSIGN_OR_RETURN_STATUS(const auto drafts, model_.Draft(std::span(&draft, 1), {}));
      const double drafted = stopwatch.seconds();
      // Verified rows are random too: as many different experts as independent tokens choose.
      std::vector<int32_t> rows = {draft.token};
      for (size_t i = 0; i < drafts[0].size(); ++i) rows.push_back(Token());
      int64_t accepted = 0;
      while (accepted < num_drafts_ && unit(random_) < AcceptanceAt(accepted)) ++accepted;
      const Stopwatch verification;
      DSV4_RETURN_IF_ERROR(Verify(state, rows, accepted + 1));
      DSV4_RETURN_IF_ERROR(state.Rewind(num_drafts_ - accepted));
      if (step < kWarmUp) continue;
      drafting.push_back(drafted);
      verifying.push_back(verification.seconds());
      num_tokens += accepted + 1;
    }
    measured.drafting = diag::Median(drafting);
    measured.verifying = diag::Median(verifying);
    measured.tokens = static_cast<double>(num_tokens) / static_cast<double>(options_.num_steps);
    return {};
  }

  // As the engine verifies: the backend chooses, where it gains by it.
  Status Verify(kv::SequenceState& state, std::span<const int32_t> rows, int64_t num_sampled) {
    if (!model_.asynchronous() || !model_.can_queue()) {
      const model::SequenceChunk chunk = {.state = &state, .tokens = rows, .logits = model::LogitsRows::kAll};
      DSV4_ASSIGN_OR_RETURN_STATUS(const model::StepOutput output, model_.Step(std::span(&chunk, 1)));
      return Sample(output, num_sampled);
    }
    const std::vector<sampling::ChoiceParams> greedy(rows.size(), {.temperature = 0});
    const model::DecodeChunk chunk{.state = &state,
                                   .token = rows[0],
                                   .choice = greedy[0],
                                   .draft = rows.subspan(1),
                                   .draft_choices = std::span(greedy).subspan(1),
                                   .drafts_next = true};
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::unique_ptr<model::QueuedStep> step,
                                 model_.QueueDecode(std::span(&chunk, 1), {}));
    const auto chosen = step->Wait();
    return chosen ? Status() : chosen.error();
  }

  double AcceptanceAt(int64_t place) const {
    return options_.acceptance[std::min(static_cast<size_t>(place), options_.acceptance.size() - 1)];
  }

  model::Model& model_;
  const AcceptanceBenchOptions& options_;
  int64_t num_drafts_;
  std::mt19937_64 random_;
};

void Print(const AcceptanceBenchOptions& options, const std::string& name, int64_t num_drafts,
           const Measured& measured) {
  const std::string drafter = options.drafter.substr(0, options.drafter.find(':'));
  if (options.json) {
    const Json document = {{"model", name},
                           {"drafter", drafter},
                           {"drafts", num_drafts},
                           {"acceptance_given", options.acceptance},
                           {"depth", options.depth},
                           {"serial_seconds", measured.serial},
                           {"drafting_seconds", measured.drafting},
                           {"verifying_seconds", measured.verifying},
                           {"tokens_a_step", measured.tokens},
                           {"ratio", measured.Ratio()}};
    fmt::print("{}\n", document.dump(2));
    return;
  }
  fmt::print("model       {}, depth {}\n", name, options.depth);
  fmt::print("acceptance  {} GIVEN, not measured: {} of {} a step\n", fmt::join(options.acceptance, ", "),
             Counted(num_drafts, "draft"), drafter);
  fmt::print("serial      {:.3f} ms a token\n", measured.serial * 1e3);
  fmt::print("step        {:.3f} ms drafting + {:.3f} ms verifying {}, {:.2f} tokens\n",
             measured.drafting * 1e3, measured.verifying * 1e3, Counted(num_drafts + 1, "row"),
             measured.tokens);
  fmt::print("ratio       {:.2f} x the tokens of serial decoding\n", measured.Ratio());
}

}  // namespace

int RunAcceptanceBench(const AcceptanceBenchOptions& options, const ModelFlags& model_flags) {
  const auto choice = speculation::ParseChoice(options.drafter);
  if (!choice || choice->suffix || !choice->any()) {
    return Fail(
        InvalidArgument(fmt::format("bench --acceptance: got --speculation {}, wanted mtp[:K] or dspark[:K]: "
                                    "what the suffix drafter costs and finds is in the prompts",
                                    options.drafter)),
        kExitBadUsage);
  }
  const int64_t num_drafts =
      choice->always > 0 ? choice->always
                         : std::min(static_cast<int64_t>(options.acceptance.size()), speculation::kMostMtp);
  const Result<ModelSource> source = ModelSource::Find(model_flags);
  if (!source) return Fail(source.error(), kExitBadInput);
  ModelFlags flags = model_flags;
  flags.mtp = choice->mtp;
  flags.dspark = choice->dspark;
  LoadBar bar;
  const int64_t context = options.depth + (options.num_steps + 8) * (num_drafts + 1);
  const auto model = LoadModel(flags, *source, bar.callback(), {.num_sequences = 2, .context = context});
  bar.Clear();
  if (!model) return Fail(model.error(), LoadExitCode(model.error()));
  if (!(*model)->can_draft()) {
    return Fail(FailedPrecondition(fmt::format(
                    "bench --acceptance: {}: {} (--weights synthetic:SHAPE,...,mtp or dspark has a drafter)",
                    source->name(), (*model)->why_no_draft())),
                kExitBadInput);
  }
  const Result<Measured> measured = AcceptanceBench(**model, options, num_drafts).Run();
  if (!measured) return Fail(measured.error(), kExitRunFailed);
  Print(options, source->name(), num_drafts, *measured);
  return kExitOk;
}

}  // namespace dsv4::apps
