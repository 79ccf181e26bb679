// Sessions, steps of several of them, and samplers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "capi/objects.h"
#include "grammar/rules/content_rule.h"
#include "io/content_digest.h"
#include "kv/snapshot.h"
#include "session/answer_shape.h"

using dsv4::InvalidArgument;
using dsv4::LogSink;
using dsv4::Status;
using dsv4::capi::Guard;
using Turn = dsv4_model::Turn;

namespace {

Status NoLogits() {
  return dsv4::FailedPrecondition("session: no logits: nothing was appended since it was made or moved");
}

dsv4::Result<std::optional<dsv4::grammar::ContentRule>> RuleOf(const dsv4_sampling& sampling) {
  using Kind = dsv4::grammar::ContentRule::Kind;
  static constexpr std::array kKinds = {Kind::kJsonSchema, Kind::kRegex, Kind::kChoice, Kind::kGrammar,
                                        Kind::kStructuralTag};
  if (sampling.rule_kind < DSV4_RULE_NONE || sampling.rule_kind > DSV4_RULE_STRUCTURAL_TAG) {
    return dsv4::Error(InvalidArgument(
        fmt::format("dsv4_sampling.rule_kind: got {}, wanted 0 to {}", sampling.rule_kind, kKinds.size())));
  }
  if ((sampling.rule_kind == DSV4_RULE_NONE) != (sampling.rule == nullptr)) {
    return dsv4::Error(
        InvalidArgument(fmt::format("dsv4_sampling: got rule_kind {} and {} rule, wanted both or none",
                                    sampling.rule_kind, sampling.rule == nullptr ? "no" : "a")));
  }
  if (sampling.rule == nullptr) return std::nullopt;
  return dsv4::grammar::ContentRule{.kind = kKinds[static_cast<size_t>(sampling.rule_kind) - 1],
                                    .text = sampling.rule,
                                    .label = "dsv4_sampling.rule"};
}

// All of one model, each with its logits.
Status Step(dsv4_model& model, std::span<dsv4_session* const> sessions,
            std::span<const dsv4::model::SequenceChunk> batch) {
  const Turn turn(model);
  const LogSink sink(model.log);
  DSV4_ASSIGN_OR_RETURN_STATUS(const dsv4::model::StepOutput output, model.model->Step(batch));
  for (size_t i = 0; i < sessions.size(); ++i) {
    const auto rows = output.logits.subspan(static_cast<size_t>(output.row_begin[i] * output.vocab_size),
                                            static_cast<size_t>(output.num_rows(i) * output.vocab_size));
    sessions[i]->logits.assign(rows.begin(), rows.end());
  }
  return {};
}

Status Choose(dsv4_sampler& sampler, const dsv4_session& session, int32_t& token) {
  if (sampler.model != session.model)
    return InvalidArgument("dsv4_sample: sampler and session are of different models");
  if (session.logits.empty()) return NoLogits();
  const auto vocab_size = static_cast<size_t>(dsv4_model_vocab_size(session.model.get()));
  std::span<const uint64_t> permitted;
  if (sampler.constraint != nullptr) permitted = sampler.constraint->Allowed();
  if (!permitted.empty() && std::ranges::all_of(permitted, [](uint64_t word) { return word == 0; }))
    return sampler.constraint->WhyNone();
  DSV4_ASSIGN_OR_RETURN_STATUS(const dsv4::sampling::SampledToken sampled,
                               sampler.sampler.Sample(std::span(session.logits).last(vocab_size), permitted));
  if (sampler.constraint != nullptr && dsv4_model_is_stop(sampler.model.get(), sampled.id) == 0)
    sampler.constraint->Accept(sampled.id);
  token = sampled.id;
  return {};
}

}  // namespace

dsv4_code dsv4_session_new(dsv4_model* model, dsv4_session** session, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (model == nullptr || session == nullptr)
      return InvalidArgument("dsv4_session_new: got NULL for model or session");
    *session = nullptr;
    const Turn turn(*model);
    const LogSink sink(model->log);
    DSV4_ASSIGN_OR_RETURN_STATUS(dsv4::kv::SequenceState state, model->model->NewSequence());
    *session = new dsv4_session{.model = model->shared_from_this(), .state = std::move(state), .logits = {}};
    return {};
  });
}

void dsv4_session_free(dsv4_session* session) {
  if (session == nullptr) return;
  const std::shared_ptr<dsv4_model> model = session->model;
  const Turn turn(*model);
  delete session;
}

int64_t dsv4_session_length(const dsv4_session* session) { return session->state.length(); }

dsv4_code dsv4_session_append(dsv4_session* session, const int32_t* ids, size_t num_ids, int32_t all_logits,
                              dsv4_error* error) {
  dsv4_chunk chunk = {sizeof(dsv4_chunk), session, ids, num_ids, all_logits};
  return dsv4_step(&chunk, 1, error);
}

dsv4_code dsv4_step(dsv4_chunk* chunks, size_t num_chunks, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (chunks == nullptr || num_chunks == 0) return InvalidArgument("dsv4_step: got no chunks");
    std::vector<dsv4_session*> sessions;
    std::vector<dsv4::model::SequenceChunk> batch;
    for (size_t i = 0; i < num_chunks; ++i) {
      const dsv4_chunk& chunk = chunks[i];
      if (chunk.size != sizeof(chunk) || chunk.session == nullptr ||
          (chunk.ids == nullptr && chunk.num_ids > 0)) {
        return InvalidArgument(
            fmt::format("dsv4_step: chunk {}: got size {} (wanted {}), or NULL for session or ids", i,
                        chunk.size, sizeof(chunk)));
      }
      if (chunk.session->model != chunks[0].session->model)
        return InvalidArgument(fmt::format("dsv4_step: chunk {}: its session is of another model", i));
      sessions.push_back(chunk.session);
      batch.push_back(
          {.state = &chunk.session->state,
           .tokens = {chunk.ids, chunk.num_ids},
           .logits = chunk.all_logits != 0 ? dsv4::model::LogitsRows::kAll : dsv4::model::LogitsRows::kLast});
    }
    return Step(*sessions[0]->model, sessions, batch);
  });
}

dsv4_code dsv4_session_logits(const dsv4_session* session, const float** logits, size_t* num_rows,
                              dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (session->logits.empty()) return NoLogits();
    *logits = session->logits.data();
    *num_rows = session->logits.size() / static_cast<size_t>(dsv4_model_vocab_size(session->model.get()));
    return {};
  });
}

dsv4_code dsv4_session_rewind(dsv4_session* session, int64_t num_tokens, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    const Turn turn(*session->model);
    DSV4_RETURN_IF_ERROR(session->state.Rewind(num_tokens));
    if (num_tokens > 0) session->logits.clear();
    return {};
  });
}

dsv4_code dsv4_session_fork(const dsv4_session* session, dsv4_session** fork, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    *fork = nullptr;
    const Turn turn(*session->model);
    DSV4_ASSIGN_OR_RETURN_STATUS(dsv4::kv::SequenceState state, session->state.Fork());
    *fork = new dsv4_session{.model = session->model, .state = std::move(state), .logits = session->logits};
    return {};
  });
}

dsv4_code dsv4_session_snapshot(const dsv4_session* session, dsv4_buffer** bytes, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    *bytes = nullptr;
    const Turn turn(*session->model);
    const dsv4::model::Model& model = *session->model->model;
    DSV4_ASSIGN_OR_RETURN_STATUS(const uint64_t origin, model.Origin(dsv4::io::ContentDigest::kForever));
    DSV4_ASSIGN_OR_RETURN_STATUS(const dsv4::kv::Snapshot snapshot, session->state.Snapshot());
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<std::byte> made,
                                 snapshot.Serialize(origin, model.options().max_rewind_tokens));
    *bytes = new dsv4_buffer{std::string(reinterpret_cast<const char*>(made.data()), made.size())};
    return {};
  });
}

dsv4_code dsv4_session_restore(dsv4_session* session, const void* bytes, size_t size, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    const Turn turn(*session->model);
    const dsv4::model::Model& model = *session->model->model;
    DSV4_ASSIGN_OR_RETURN_STATUS(const uint64_t origin, model.Origin(dsv4::io::ContentDigest::kForever));
    DSV4_ASSIGN_OR_RETURN_STATUS(
        const dsv4::kv::Snapshot snapshot,
        model.DeserializeSnapshot({static_cast<const std::byte*>(bytes), size}, origin));
    DSV4_RETURN_IF_ERROR(session->state.Restore(snapshot));
    session->logits.clear();
    return {};
  });
}

void dsv4_sampling_init(dsv4_sampling* sampling) {
  *sampling = {};
  sampling->size = sizeof(*sampling);
  sampling->temperature = 1.0F;
  sampling->top_p = 1.0F;
  sampling->repetition_penalty = 1.0F;
}

dsv4_code dsv4_sampler_new(dsv4_model* model, const dsv4_sampling* sampling, const dsv4_prompt* prompt,
                           dsv4_sampler** sampler, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (model == nullptr || sampling == nullptr || sampler == nullptr)
      return InvalidArgument("dsv4_sampler_new: got NULL for model, sampling or sampler");
    *sampler = nullptr;
    if (sampling->size != sizeof(*sampling)) {
      return InvalidArgument(
          fmt::format("dsv4_sampling.size: got {}, wanted {}", sampling->size, sizeof(*sampling)));
    }
    dsv4::sampling::SamplingParams params;
    params.temperature = sampling->temperature;
    params.top_k = sampling->top_k;
    params.top_p = sampling->top_p;
    params.min_p = sampling->min_p;
    params.repetition_penalty = sampling->repetition_penalty;
    params.presence_penalty = sampling->presence_penalty;
    params.frequency_penalty = sampling->frequency_penalty;
    params.seed = sampling->seed;
    DSV4_RETURN_IF_ERROR(dsv4::sampling::ValidateSamplingParams(params, dsv4_model_vocab_size(model)));
    std::unique_ptr<dsv4::sampling::TokenConstraint> constraint;
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::optional<dsv4::grammar::ContentRule> rule, RuleOf(*sampling));
    if (rule) {
      const bool in_reasoning = prompt != nullptr && prompt->made.rendered.ends_in_reasoning;
      DSV4_ASSIGN_OR_RETURN_STATUS(constraint,
                                   dsv4::session::MakeRuleConstraint(*model->text, in_reasoning, *rule));
    }
    auto made = std::make_unique<dsv4_sampler>(
        dsv4_sampler{.model = model->shared_from_this(),
                     .sampler = dsv4::sampling::Sampler(params, model->allowed, -1),
                     .constraint = std::move(constraint)});
    if (prompt != nullptr) made->sampler.SeePrompt(prompt->made.ids);
    *sampler = made.release();
    return {};
  });
}

void dsv4_sampler_free(dsv4_sampler* sampler) { delete sampler; }

dsv4_code dsv4_sample(dsv4_sampler* sampler, const dsv4_session* session, int32_t* token, dsv4_error* error) {
  return Guard(error, [&]() -> Status { return Choose(*sampler, *session, *token); });
}

namespace {

// Checks the rows of dsv4_decode.
Status CheckRows(std::span<const dsv4_row> rows) {
  std::vector<const dsv4_session*> sessions;
  for (size_t i = 0; i < rows.size(); ++i) {
    const dsv4_row& row = rows[i];
    if (row.size != sizeof(row) || row.session == nullptr || row.sampler == nullptr) {
      return InvalidArgument(
          fmt::format("dsv4_decode: row {}: got size {} (wanted {}), or NULL for session or sampler", i,
                      row.size, sizeof(row)));
    }
    if (row.session->model != rows[0].session->model)
      return InvalidArgument(fmt::format("dsv4_decode: row {}: its session is of another model", i));
    if (row.left < 1)
      return InvalidArgument(fmt::format("dsv4_decode: row {}: got left {}, wanted 1 or more", i, row.left));
    sessions.push_back(row.session);
  }
  std::ranges::sort(sessions);
  if (std::ranges::adjacent_find(sessions) != sessions.end())
    return InvalidArgument("dsv4_decode: got a session in several rows");
  return {};
}

// One step. Whether a row has ended.
dsv4::Result<bool> DecodeStep(std::span<dsv4_row> rows, std::span<int32_t> tokens) {
  dsv4_model& model = *rows[0].session->model;
  std::vector<dsv4_session*> sessions;
  std::vector<dsv4::model::SequenceChunk> batch;
  for (size_t i = 0; i < rows.size(); ++i) {
    DSV4_TRY(Choose(*rows[i].sampler, *rows[i].session, tokens[i]));
    if (rows[i].left == 1 || dsv4_model_is_stop(&model, tokens[i]) != 0) continue;
    sessions.push_back(rows[i].session);
    batch.push_back({.state = &rows[i].session->state,
                     .tokens = tokens.subspan(i, 1),
                     .logits = dsv4::model::LogitsRows::kLast});
  }
  if (!batch.empty()) DSV4_TRY(Step(model, sessions, batch));
  for (dsv4_row& row : rows) --row.left;
  return batch.size() < rows.size();
}

}  // namespace

dsv4_code dsv4_decode(dsv4_row* rows, size_t num_rows, size_t num_steps, int32_t* tokens, size_t* num_done,
                      dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (num_done == nullptr) return InvalidArgument("dsv4_decode: got NULL for num_done");
    *num_done = 0;
    if (rows == nullptr || num_rows == 0 || num_steps == 0 || tokens == nullptr)
      return InvalidArgument("dsv4_decode: got no rows, no steps or no room for tokens");
    DSV4_RETURN_IF_ERROR(CheckRows({rows, num_rows}));
    for (bool ended = false; *num_done < num_steps && !ended; ++*num_done) {
      DSV4_ASSIGN_OR_RETURN_STATUS(ended,
                                   DecodeStep({rows, num_rows}, {tokens + *num_done * num_rows, num_rows}));
    }
    return {};
  });
}
