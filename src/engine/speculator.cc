// Speculation: a step reads, behind a sequence's last token, a draft of the tokens that may follow. It
// samples from its rows one after the other for as long as the sampled token is the draft's. Rows beyond that
// are taken back.
//
// A row's logits do not depend on the rows behind it, nor on how a text is cut into steps (model.h). A
// sampled token depends on the logits in front of it and on its number in the answer alone
// (sampling::Sampler). So every token is the one that would have come without a draft, whatever the sampling,
// the constraint or the drafter. Nothing is sampled twice, so its distribution is the sampler's.
#include "engine/speculator.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/schedule/measure_prices.h"

namespace dsv4::engine {

Speculator::Speculator(EngineCore& core)
    : core_(core), draft_policy_(/*drafts_blocks=*/core.model.has_dspark()) {
  // Other backends are as fast at first as later; ranks that follow do so later.
  if (core.queues() && core.model.options().group == nullptr) MeasureFirst();
}

void Speculator::MeasureFirst() {
  const SpeculationOptions& speculates = core_.options.speculation;
  const bool drafts = speculates.any() && !speculates.always;
  if (drafts) {
    const int64_t most_drafted = speculates.dspark ? core_.model.most_drafts()
                                 : speculates.mtp  ? speculates.most_mtp_tokens
                                                   : 0;
    MeasurePrices(core_.model, {.most_mtp_tokens = most_drafted}, draft_policy_);
  }
  if (core_.model.asynchronous()) {
    MeasurePasses(core_.model, core_.options.max_step_tokens, core_.prefill_policy,
                  drafts ? &draft_policy_ : nullptr);
  }
}

void Speculator::Learn(Sequence& sequence) {
  const speculation::Choice& choice = sequence.request.speculation;
  if (core_.options.speculation.make_drafter == nullptr || !choice.suffix) return;
  if (sequence.drafter == nullptr) sequence.drafter = core_.options.speculation.make_drafter();
  // A draft that no step has verified shows nevertheless whether its first token was right.
  const auto num_known = static_cast<int64_t>(sequence.tokens.size());
  if (!sequence.watched.tokens.empty() && sequence.watched_at < num_known) {
    const bool right =
        sequence.tokens[static_cast<size_t>(sequence.watched_at)] == sequence.watched.tokens.front();
    draft_policy_.RecordDraft(sequence.acceptance, sequence.watched.evidence, 1, right ? 1 : 0);
    sequence.watched = {};
  }
  sequence.drafter->Read(sequence.tokens);
}

speculation::Draft Speculator::Propose(Sequence& sequence, int64_t most) {
  speculation::Draft draft;
  if (sequence.drafter != nullptr) draft = sequence.drafter->Propose(most);
  sampling::TokenConstraint* constraint = sequence.request.constraint.get();
  if (constraint == nullptr) return draft;
  draft.tokens.resize(constraint->CountAllowed(draft.tokens));
  std::vector<int32_t> forced = constraint->Forced(static_cast<size_t>(most));
  if (forced.empty()) return draft;
  // A draft of the same text in other tokens has been written so before.
  if (draft.tokens.size() >= forced.size()) forced = std::move(draft.tokens);
  return {std::move(forced), speculation::kForcedEvidence, speculation::Source::kGrammar};
}

bool Speculator::MayAskModel(const Sequence& sequence) const {
  const speculation::Choice& choice = sequence.request.speculation;
  return (core_.options.speculation.mtp && choice.mtp) || (core_.options.speculation.dspark && choice.dspark);
}

int64_t Speculator::AlwaysOf(const Sequence& sequence) const {
  if (sequence.request.speculation.always > 0) return sequence.request.speculation.always;
  return core_.options.speculation.always ? core_.options.speculation.most_tokens : 0;
}

bool Speculator::Plan() {
  const SpeculationOptions& options = core_.options.speculation;
  for (const auto& sequence : core_.running) {
    sequence->num_verified = 0;
    sequence->draft = {};
    sequence->draft_cost = 0.0;
  }
  if (!options.any() || core_.options.watcher != nullptr || core_.options.observer != nullptr) return false;
  if (core_.running.empty()) return false;
  const auto num_running = static_cast<int64_t>(core_.running.size());
  int64_t room =
      std::min(core_.options.max_step_tokens, core_.model.options().max_chunk_tokens) - num_running;
  std::vector<speculation::Candidate> candidates;
  std::vector<Sequence*> drafted;
  int64_t num_always = 0;
  bool asks_mtp = false;
  for (const auto& sequence : core_.running) {
    // While a prompt is read beside it, a step's time is that of the prompt.
    if (sequence->num_pending() > 1 || sequence->num_output_tokens() == 0) return false;
    if (!sequence->request.speculation.any() || sequence->mask_late) continue;
    Learn(*sequence);
    LearnUnverified(*sequence);
    // The last token of an answer is never read.
    int64_t left = std::min(core_.model.cache_layout().max_rewind_tokens,
                            sequence->max_tokens - sequence->num_output_tokens() - 1);
    if (core_.few_rows > 0) left = std::min(left, core_.few_rows - 1);  // Beside the token in front of them.
    const int64_t always = AlwaysOf(*sequence);
    const int64_t most = std::min(left, always > 0 ? always : options.most_tokens);
    sequence->watched = most > 0 ? Propose(*sequence, most) : speculation::Draft();
    sequence->watched_at = static_cast<int64_t>(sequence->tokens.size());
    int64_t most_mtp = 0;
    if (most > 0 && MayAskModel(*sequence)) {
      const int64_t wanted = options.dspark ? options.most_tokens : options.most_mtp_tokens;
      most_mtp =
          std::min({left, always > 0 ? always : wanted, speculation::kMostMtp, core_.model.most_drafts()});
      asks_mtp = true;
    }
    if (sequence->watched.tokens.empty() && most_mtp == 0) continue;
    if (always > 0) ++num_always;
    candidates.push_back(
        {.draft = &sequence->watched, .record = &sequence->acceptance, .most_mtp = most_mtp});
    drafted.push_back(sequence.get());
  }
  if (drafted.empty() || room <= 0) return false;
  std::vector<speculation::Length> lengths(drafted.size());
  if (num_always < static_cast<int64_t>(drafted.size())) {
    lengths = draft_policy_.Lengths(candidates, num_running, num_running + room);
  }
  const auto by_mtp = [](const speculation::Length& length) { return length.by_mtp && length.tokens > 0; };
  const int evidence = options.dspark ? speculation::kDsparkEvidence : speculation::kMtpEvidence;
  if (num_always == 0 && asks_mtp && draft_policy_.ShouldTryMtp() && std::ranges::none_of(lengths, by_mtp)) {
    const double price = draft_policy_.Price(1, 1, num_running, 1, 1);
    const auto first = std::ranges::find_if(candidates, [&](const speculation::Candidate& candidate) {
      return candidate.most_mtp > 0 && price <= candidate.record->Credit(evidence);
    });
    if (first != candidates.end()) {
      speculation::Length& length = lengths[static_cast<size_t>(first - candidates.begin())];
      if (length.tokens == 0) length = {.tokens = 1, .by_mtp = true};
    }
  }
  int64_t num_bytes = 0;
  bool any = false;
  for (size_t i = 0; i < drafted.size(); ++i) {
    Sequence& sequence = *drafted[i];
    speculation::Length& length = lengths[i];
    if (AlwaysOf(sequence) > 0) {
      const auto free = static_cast<int64_t>(sequence.watched.tokens.size());
      length =
          free > 0 ? speculation::Length{free, false} : speculation::Length{candidates[i].most_mtp, true};
    }
    // A block costs the same whatever of it is wanted, and how much that is shows when it is there
    // (ShortenBlocks).
    if (options.dspark && length.by_mtp && length.tokens > 0) length.tokens = candidates[i].most_mtp;
    sequence.num_verified = std::min(room, length.tokens);
    room -= sequence.num_verified;
    if (sequence.num_verified == 0) continue;
    any = true;
    if (length.by_mtp) {
      sequence.draft = {.evidence = evidence,
                        .source = options.dspark ? speculation::Source::kDspark : speculation::Source::kMtp};
    } else {
      sequence.draft = sequence.watched;
    }
  }
  // Drafts must not cost others their state.
  if (any && core_.options.max_state_bytes > 0) {
    for (const auto& sequence : core_.running) {
      num_bytes +=
          core_.model.MostStateBytes(static_cast<int64_t>(sequence->tokens.size()) + sequence->num_verified);
    }
    if (num_bytes > core_.options.max_state_bytes && core_.running.size() > 1) {
      for (const auto& sequence : core_.running) sequence->num_verified = 0;
      return false;
    }
  }
  return any;
}

bool Speculator::Choose() { return Plan() && MakeModelDrafts(); }

// Drafts what was planned; whether there is anything to verify.
bool Speculator::MakeModelDrafts() {
  const bool blocks = core_.options.speculation.dspark;
  const auto most = static_cast<size_t>(core_.model.most_drafts());
  std::vector<Sequence*> drafted;
  std::vector<model::DraftChunk> chunks;
  std::vector<float> confidence(core_.running.size() * most);
  int64_t longest = 0;
  for (const auto& sequence : core_.running) {
    if (sequence->num_verified == 0 || !IsByModel(sequence->draft)) continue;
    model::DraftChunk chunk = {.state = &*sequence->state, .token = sequence->tokens.back()};
    // With the numbers that the sampler will draw there.
    for (int64_t i = 0; i < sequence->num_verified; ++i)
      chunk.choices.push_back(sequence->sampler.ChoiceAfter(static_cast<uint64_t>(i)));
    if (blocks) chunk.confidence = confidence.data() + chunks.size() * most;
    longest = std::max(longest, sequence->num_verified);
    drafted.push_back(sequence.get());
    chunks.push_back(std::move(chunk));
  }
  if (!chunks.empty()) {
    const Clock::time_point begin = Clock::now();
    Result<std::vector<std::vector<int32_t>>> drafts = Error(Internal("none"));
    if (const Status ready = core_.UploadAllowed(); ready.ok()) {
      drafts = core_.model.Draft(chunks, core_.allowed_on_backend);
    } else {
      drafts = Error(ready);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    core_.stats.drafting_seconds += seconds;
    if (drafts && !known_drafts_.insert(longest).second)
      draft_policy_.RecordDraftTime(longest, static_cast<int64_t>(chunks.size()), seconds);
    if (!drafts) LogWarning("drafts are left out of this step: " + drafts.error().message());
    for (size_t i = 0; i < drafted.size(); ++i) {
      Sequence& sequence = *drafted[i];
      if (drafts) sequence.draft.tokens = std::move((*drafts)[i]);
      if (sampling::TokenConstraint* constraint = sequence.request.constraint.get(); constraint != nullptr)
        sequence.draft.tokens.resize(constraint->CountAllowed(sequence.draft.tokens));
      sequence.num_verified = static_cast<int64_t>(sequence.draft.tokens.size());
      if (blocks && drafts) sequence.draft.evidence = speculation::DsparkEvidence(chunks[i].confidence[0]);
    }
    if (blocks && drafts) ShortenBlocks(drafted);
  }
  PriceDrafts(drafted, longest);
  return std::ranges::any_of(core_.running, [](const auto& sequence) { return sequence->num_verified > 0; });
}

void Speculator::PriceDrafts(std::span<Sequence* const> made, int64_t longest) {
  int64_t num_drafted = 0;
  for (const auto& sequence : core_.running) num_drafted += sequence->num_verified;
  const auto num_running = static_cast<int64_t>(core_.running.size());
  for (const auto& sequence : core_.running) {
    const bool by_model = std::ranges::find(made, sequence.get()) != made.end();
    sequence->draft_cost = draft_policy_.Price(sequence->num_verified, num_drafted, num_running,
                                               by_model ? longest : 0, std::ssize(made));
  }
}

void Speculator::ShortenBlocks(std::span<Sequence* const> drafted) {
  std::vector<speculation::Candidate> candidates;
  std::vector<Sequence*> shortened;
  int64_t most_rows = 0;
  for (const auto& sequence : core_.running) most_rows += 1 + sequence->num_verified;
  int64_t base_rows = most_rows;
  for (Sequence* const sequence : drafted) {
    if (AlwaysOf(*sequence) > 0 || sequence->num_verified == 0) continue;
    candidates.push_back({.draft = &sequence->draft, .record = &sequence->acceptance});
    shortened.push_back(sequence);
    base_rows -= sequence->num_verified;
  }
  if (candidates.empty()) return;
  const std::vector<speculation::Length> lengths = draft_policy_.Lengths(candidates, base_rows, most_rows);
  for (size_t i = 0; i < shortened.size(); ++i) {
    Sequence& sequence = *shortened[i];
    sequence.num_verified = lengths[i].tokens;
    if (sequence.num_verified > 0) continue;
    sequence.unverified = std::exchange(sequence.draft, {});
    sequence.unverified_at = static_cast<int64_t>(sequence.tokens.size());
  }
}

void Speculator::LearnUnverified(Sequence& sequence) {
  const auto num_known = static_cast<int64_t>(sequence.tokens.size());
  if (sequence.unverified.tokens.empty() || sequence.unverified_at >= num_known) return;
  const bool right =
      sequence.tokens[static_cast<size_t>(sequence.unverified_at)] == sequence.unverified.tokens.front();
  RecordDraft(sequence, sequence.unverified, 1, right ? 1 : 0);
  sequence.unverified = {};
}

void Speculator::RecordDraft(Sequence& sequence, const speculation::Draft& draft, int64_t verified,
                             int64_t accepted) {
  draft_policy_.RecordDraft(sequence.acceptance, draft.evidence, verified, accepted);
  // And what is to be expected of blocks before one is drafted.
  if (draft.source == speculation::Source::kDspark)
    draft_policy_.RecordDraft(sequence.acceptance, speculation::kDsparkEvidence, verified, accepted);
}

void Speculator::RecordDecodeStep(int64_t rows, int64_t num_sequences, Clock::time_point begin) {
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  core_.prefill_policy.RecordStep(rows, 0, seconds);
  if (!core_.options.speculation.any()) return;
  if (known_rows_.insert(rows).second) return;
  draft_policy_.RecordStep(rows, num_sequences, seconds);
  if (rows == num_sequences) draft_policy_.RecordStepWithoutMtp();
}

Status Speculator::RecordSampled(Sequence& sequence, int64_t num_sampled) {
  sequence.acceptance.Paid(num_sampled, sequence.num_verified > 0 ? num_sampled - 1 : 0,
                           std::exchange(sequence.draft_cost, 0.0));
  if (sequence.num_verified == 0) return {};
  const int64_t accepted = num_sampled - 1;  // All in front of the last were the draft's.
  RecordDraft(sequence, sequence.draft, sequence.num_verified, accepted);
  const auto source = static_cast<size_t>(sequence.draft.source);
  for (int64_t place = 0; place < sequence.num_verified; ++place) {
    const size_t counted = std::min<size_t>(static_cast<size_t>(place), kDraftDepths - 1);
    ++core_.stats.num_draft_tokens[source][counted];
    if (place < accepted) ++core_.stats.num_accepted_tokens[source][counted];
    if (place <= accepted) ++core_.stats.num_reached_tokens[source][counted];
  }
  if (!IsByModel(sequence.draft)) sequence.watched = {};
  sequence.draft = {};
  return sequence.state->Rewind(std::exchange(sequence.num_verified, 0) - accepted);
}

}  // namespace dsv4::engine
