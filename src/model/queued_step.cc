#include "model/queued_step.h"

#include <fmt/format.h>

#include "model/model.h"
#include "model/step.h"

namespace dsv4::model {

Result<std::vector<ChosenToken>> QueuedStep::Wait() {
  DSV4_TRY(copy_->Wait());
  const auto* const numbers = static_cast<const int32_t*>(host_.data());
  std::vector<ChosenToken> tokens;
  for (size_t i = 0; i < count_; ++i) tokens.push_back({numbers[i], numbers[count_ + i]});
  return tokens;
}

Result<Buffer> Model::UploadAllowedTokens(std::span<const uint8_t> allowed) const {
  if (static_cast<int64_t>(allowed.size()) != config_.vocab_size) {
    return Error(
        InvalidArgument(fmt::format("allowed tokens: got {}, want {}", allowed.size(), config_.vocab_size)));
  }
  ops::OpContext& context = *backend_.context;
  DSV4_ASSIGN_OR_RETURN(Buffer buffer, context.memory().Allocate(allowed.size()));
  DSV4_TRY(context.memory().CopyFromHost(buffer.data(), allowed.data(), allowed.size(), context.stream()));
  return buffer;
}

Status Model::CheckDecode(std::span<const DecodeChunk> chunks) const {
  if (!can_queue()) {
    return Unimplemented(fmt::format("queued step: want one rank and up to {} tokens in the vocabulary",
                                     sampling::kMaxChoices));
  }
  if (static_cast<int64_t>(chunks.size()) > options_.max_chunk_tokens) {
    return InvalidArgument(fmt::format("queued step: got {} chunks, want at most max_chunk_tokens {}",
                                       chunks.size(), options_.max_chunk_tokens));
  }
  std::vector<SequenceChunk> sequences;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const DecodeChunk& chunk = chunks[i];
    if (chunk.follows >= num_chosen_) {
      return InvalidArgument(fmt::format("queued step, chunk {}: follows chunk {}, the step before had {}", i,
                                         chunk.follows, num_chosen_));
    }
    static constexpr int32_t kAny = 0;
    sequences.push_back({.state = chunk.state, .tokens = {chunk.follows < 0 ? &chunk.token : &kAny, 1}});
  }
  return CheckChunks(sequences);
}

Result<std::unique_ptr<QueuedStep>> Model::QueueDecode(std::span<const DecodeChunk> chunks,
                                                       const Buffer& allowed) {
  DSV4_TRY(CheckDecode(chunks));
  ops::OpContext& context = *backend_.context;
  const auto count = static_cast<int64_t>(chunks.size());
  if (!chosen_) {
    const auto most = static_cast<size_t>(2 * options_.max_chunk_tokens) * sizeof(int32_t);
    DSV4_ASSIGN_OR_RETURN(chosen_, context.memory().Allocate(most));
  }
  const auto view = [&](const Buffer& buffer, int64_t begin, int64_t size) {
    return TensorView::Contiguous(static_cast<int32_t*>(buffer.data()) + begin, DType::kI32, {size},
                                  buffer.device());
  };
  ChosenTokens chosen = {.allowed = {},
                         .previous = view(chosen_, 0, num_chosen_),
                         .tokens = view(chosen_, 0, count),
                         .faults = view(chosen_, count, count)};
  if (allowed) {
    chosen.allowed =
        TensorView::Contiguous(allowed.data(), DType::kU8, {config_.vocab_size}, allowed.device());
  }
  const auto num_bytes = static_cast<size_t>(2 * count) * sizeof(int32_t);
  DSV4_ASSIGN_OR_RETURN(Buffer host, context.memory().AllocateOnHost(num_bytes));

  std::vector<PassChunk> pass;
  Status status;
  for (size_t i = 0; i < chunks.size() && status.ok(); ++i) {
    const DecodeChunk& chunk = chunks[i];
    status = chunk.state->BeginAppend(1).WithContext(fmt::format("queued step, chunk {}", i));
    pass.push_back({.state = chunk.state,
                    .tokens = {&chunk.token, 1},
                    .chunk = static_cast<int32_t>(i),
                    .num_logits_rows = 1,
                    .follows = chunk.follows,
                    .choice = chunk.choice});
  }
  if (status.ok()) status = RunPass(MakeGraph(), arena_, pass, &chosen, nullptr);
  // Tokens of a step that was begun may be partly written.
  num_chosen_ = 0;
  if (status.ok()) {
    Result<std::unique_ptr<PendingCopy>> copy =
        context.memory().StartCopyToHost(host.data(), chosen_.data(), num_bytes, context.stream());
    if (copy) {
      for (const PassChunk& chunk : pass) chunk.state->CommitAppend();
      num_chosen_ = count;
      return std::make_unique<QueuedStep>(std::move(host), std::move(*copy), chunks.size());
    }
    status = copy.error();
  }
  for (const PassChunk& chunk : pass) chunk.state->RollBack(chunk.state->length());
  return Error(std::move(status));
}

}  // namespace dsv4::model
