// Steps: chunks are cut into passes, run, and taken back after an error.
#include "model/runtime/run_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>

#include "io/mapped_file.h"
#include "model/graph/pass_tail.h"
#include "model/graph/step.h"
#include "model/runtime/step_message.h"

namespace dsv4::model {

Status CheckChunks(const ModelParts& model, std::span<const SequenceChunk> chunks) {
  if (chunks.empty()) return InvalidArgument("step: got no chunks, want at least one");
  for (size_t i = 0; i < chunks.size(); ++i) {
    const SequenceChunk& chunk = chunks[i];
    const std::string where = fmt::format("step, chunk {}", i);
    if (chunk.state == nullptr) return InvalidArgument(where + ": the sequence state is null");
    if (&chunk.state->layout() != model.layout.get()) {
      return InvalidArgument(where + ": the sequence state was made by another model");
    }
    for (size_t k = 0; k < i; ++k) {
      if (chunks[k].state == chunk.state) {
        return InvalidArgument(fmt::format("{}: the sequence state is already in chunk {}", where, k));
      }
    }
    DSV4_RETURN_IF_ERROR(
        chunk.state->CheckAppend(static_cast<int64_t>(chunk.tokens.size())).WithContext(where));
    if (chunk.num_following < 0) {
      return InvalidArgument(
          fmt::format("{}: num_following: got {}, want 0 or more", where, chunk.num_following));
    }
    const int64_t num_logits = NumRows(chunk.logits, std::ssize(chunk.tokens));
    const int64_t first_logits = chunk.state->length() + std::ssize(chunk.tokens) - num_logits;
    if (num_logits > 0 && !chunk.state->whole() && first_logits < chunk.state->whole_from()) {
      return FailedPrecondition(fmt::format(
          "{}: got logits wanted of position {}, but rows in front were left out: want none in front of {}",
          where, first_logits, chunk.state->whole_from()));
    }
    for (size_t t = 0; t < chunk.tokens.size(); ++t) {
      const int32_t token = chunk.tokens[t];
      if (token < 0 || token >= model.config.vocab_size) {
        return InvalidArgument(fmt::format("{}, token {}: got id {}, want 0 to {}", where, t, token,
                                           model.config.vocab_size - 1));
      }
    }
  }
  return {};
}

namespace {

Status RunPasses(ModelParts& model, std::span<const SequenceChunk> chunks, const Status& ready,
                 StepOutput& output, Observer* observer) {
  const Graph graph = model.MakeGraph();
  std::vector<size_t> done(chunks.size(), 0);
  for (;;) {
    // Fills a pass with the tokens that are left, in order of the chunks.
    std::vector<PassChunk> pass;
    auto room = static_cast<size_t>(model.options.max_chunk_tokens);
    Status status = ready;
    for (size_t i = 0; i < chunks.size() && room > 0 && status.ok(); ++i) {
      const SequenceChunk& chunk = chunks[i];
      const size_t begin = done[i];
      const size_t count = std::min(room, chunk.tokens.size() - begin);
      if (count == 0) continue;
      status =
          chunk.state->BeginAppend(static_cast<int64_t>(count)).WithContext(fmt::format("step, chunk {}", i));
      done[i] += count;
      room -= count;
      // Logits are wanted of the chunk's last rows, and of those the ones that fall into this pass.
      const int64_t num_wanted = NumRows(chunk.logits, std::ssize(chunk.tokens));
      const auto first_wanted = static_cast<int64_t>(chunk.tokens.size()) - num_wanted;
      const int64_t first_here = std::max(first_wanted, static_cast<int64_t>(begin));
      const int64_t num_here = std::max<int64_t>(0, static_cast<int64_t>(done[i]) - first_here);
      const int64_t output_row = output.row_begin[i] + first_here - first_wanted;
      const int64_t behind = std::ssize(chunk.tokens) - static_cast<int64_t>(begin);
      pass.push_back({.state = chunk.state,
                      .tokens = chunk.tokens.subspan(begin, count),
                      .chunk = static_cast<int32_t>(i),
                      .num_logits_rows = num_here,
                      .logits = output.logits.empty() ? nullptr
                                                      : static_cast<float*>(output.owner.data()) +
                                                            output_row * model.config.vocab_size,
                      .exact_from = ExactFrom(*chunk.state, behind, num_wanted, chunk.num_following)});
    }
    if (status.ok() && pass.empty()) return {};
    SortByPlace(pass);
    // Memory is asked for before anything is computed, so a rank without it loses no work.
    status = model.group.Agree(status);
    DSV4_RETURN_IF_ERROR(status);
    PassArrays arrays;
    status = RunPass(graph, model.arena, pass, nullptr, arrays, observer);
    const bool has_waited = std::ranges::any_of(
        pass, [](const PassChunk& chunk) { return chunk.num_logits_rows > 0 && chunk.logits != nullptr; });
    // A host that has read logits has waited for the device.
    if (status.ok())
      status = has_waited ? model.group.CheckDevice()
                          : model.group.EndOnDevice(*model.backend.context, model.rope_buffer);
    if (!status.ok()) return model.group.End(status);
    for (const PassChunk& chunk : pass) chunk.state->CommitAppend();
  }
}

}  // namespace

Result<StepOutput> RunStep(ModelParts& model, std::span<const SequenceChunk> chunks, const Status& ready,
                           Observer* observer) {
  StepOutput output;
  output.vocab_size = model.config.vocab_size;
  std::vector<int64_t> lengths;
  int64_t num_rows = 0;
  for (const SequenceChunk& chunk : chunks) {
    lengths.push_back(chunk.state == nullptr ? 0 : chunk.state->length());
    output.row_begin.push_back(num_rows);
    num_rows += NumRows(chunk.logits, std::ssize(chunk.tokens));
  }
  output.row_begin.push_back(num_rows);
  Status status = ready;
  if (model.place().rank == 0 && num_rows > 0 && status.ok()) {  // Rank 0 samples.
    const auto count = static_cast<size_t>(num_rows * model.config.vocab_size);
    Result<Buffer> owner = model.backend.context->memory().AllocateOnHost(count * sizeof(float));
    if (owner) {
      output.owner = std::move(*owner);
      output.logits = {static_cast<const float*>(output.owner.data()), count};
    } else {
      status = owner.error();  // Error that the other ranks hear of before they begin.
    }
  }

  // The host's own memory runs out as the device's does: what was begun is taken back, and others may give some back.
  try {
    status = RunPasses(model, chunks, status, output, observer);
  } catch (const std::bad_alloc&) {
    status = ResourceExhausted("step: memory ran out");
    status = model.group.End(status);
  }
  if (status.ok() && !io::LostFile().ok()) {
    // Zeros stood in for weights. The file's name is for the log, not for the client.
    status = Status(StatusCode::kUnavailable, "step: the model's weights cannot be read any more");
    status = model.group.End(status);
  }
  if (status.ok()) return output;
  std::vector<size_t> poisoned;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].state == nullptr) continue;
    chunks[i].state->RollBack(lengths[i]);
    if (chunks[i].state->poisoned()) poisoned.push_back(i);
  }
  if (poisoned.empty()) return Error(std::move(status));
  return Error(
      Status(status.code(), fmt::format("{} (the sequences of chunks {} lost history and must be reset)",
                                        status.message(), fmt::join(poisoned, ", "))));
}

Status AnnounceStep(ModelParts& model, std::span<const SequenceChunk> chunks) {
  StepMessage message;
  if (model.group.leads()) message.events = model.group.TakeEvents();
  for (const SequenceChunk& chunk : chunks) {
    message.chunks.push_back({.state = chunk.state->number(),
                              .length = chunk.state->length(),
                              .logits = static_cast<uint8_t>(chunk.logits),
                              .tokens = {chunk.tokens.begin(), chunk.tokens.end()},
                              .num_following = chunk.num_following});
  }
  return model.group.Send(message);
}

}  // namespace dsv4::model
