// One generation as text: drives the engine for a request and decodes what comes out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {

struct Generation {
  std::vector<int32_t> prompt_token_ids;
  std::vector<sampling::SampledToken> tokens;  // Without the token that ended the answer.
  std::string text;                            // All of it decoded, markers included.
  engine::FinishReason finish_reason = engine::FinishReason::kStop;
  int64_t num_cached_tokens = 0;  // Prompt tokens that a kept state had read.
  double prefill_seconds = 0.0;   // Until the first token's logits.
  double decode_seconds = 0.0;
  int64_t num_steps = 0;  // That gave tokens; fewer than tokens where drafts were right.
};

struct GenerationCallbacks {
  std::function<void(int64_t, int64_t)> on_prefill;  // (prompt tokens done, prompt tokens); may be empty.
  std::function<bool(std::string_view)> on_text;     // Whole characters; false ends the generation as kStop.
  std::function<bool()> interrupted;  // Asked between steps; true ends it as kCancelled. May be empty.
};

// Runs `request` to its end. The engine must be idle. A kError finish is returned as its status.
Result<Generation> Generate(engine::Engine& engine, const tokenizer::Tokenizer& tokenizer,
                            engine::Request request, const GenerationCallbacks& callbacks);

}  // namespace dsv4::apps
