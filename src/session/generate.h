// One answer from an engine that has nothing else to do: drives it for a request and reads what comes out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "chat/completion.h"
#include "engine/engine.h"
#include "session/answer_reader.h"
#include "session/text_model.h"

namespace dsv4::session {

struct Generation {
  std::vector<int32_t> prompt_token_ids;
  std::vector<sampling::SampledToken> tokens;  // Without the token that ended the answer.
  std::string text;                            // All of it decoded, markers included.
  chat::CollectedCompletion completion;        // Content of the answer.
  engine::FinishReason finish_reason = engine::FinishReason::kStop;
  int64_t num_cached_tokens = 0;       // Prompt tokens that a kept state had read.
  int64_t num_prompt_tokens_done = 0;  // With those; all of them, unless the answer was cancelled before.
  // Reasoning tokens of `tokens`; the marker that closes the reasoning is one.
  int64_t num_reasoning_tokens = 0;
  double prefill_seconds =
      0.0;  // Until the first token's logits, or the end of one that was cancelled before.
  double decode_seconds = 0.0;
  int64_t num_steps = 0;  // Steps that gave tokens; fewer than tokens where drafts were right.

  bool cancelled() const { return finish_reason == engine::FinishReason::kCancelled; }
};

// Each may be empty.
struct GenerationCallbacks {
  std::function<void(int64_t, int64_t)> on_prefill = {};  // (prompt tokens done, prompt tokens)
  std::function<void(const chat::Delta&)> on_delta = {};  // Ends with kDone.
  std::function<bool()> interrupted = {};                 // Asked between steps; true ends it as kCancelled.
};

// Runs `request` to its end, which the text may reach before the engine (kStop then). The engine must be
// idle. A kError finish is returned as its status.
Result<Generation> Generate(engine::Engine& engine, const TextModel& text, engine::Request request,
                            const AnswerFormat& format, const GenerationCallbacks& callbacks);

}  // namespace dsv4::session
