// Facts that the server knows of the model it serves, without its weights: text, names, limits. Immutable but
// for caches that have a lock, so that every thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/thinking.h"
#include "grammar/rules/grammar_cache.h"
#include "session/answer_options.h"
#include "session/text_model.h"

namespace dsv4::server {

// Tokens of a text that is encoded for a client, at most: many times any context, and 48 MiB of ids.
inline constexpr size_t kMaxTokensRead = size_t{12} << 20;

// The part of a prompt and its answer that this server does, where others share its states.
enum class ServerRole : uint8_t {
  kBoth,
  kPrefill,  // Reads prompts for others: an answer ends when the state of its prompt is theirs.
  kDecode,   // Answers prompts that others have read.
};

struct ServedModel : session::TextModel {
  explicit ServedModel(session::TextModel text) : TextModel(std::move(text)) {}

  std::string id;                    // "tiny": what /v1/models lists and replies carry.
  std::vector<std::string> aliases;  // Further names that requests may use; "*" stands for any.
  int64_t created = 0;               // Seconds since 1970.
  int64_t num_bytes = 0;             // Tensors of the checkpoint.
  int64_t num_gpu_bytes = 0;         // Their part on a GPU.
  std::shared_ptr<grammar::GrammarCache> grammars = std::make_shared<grammar::GrammarCache>();
  size_t longest_token_bytes = 1;                // tokenizer.longest_token_bytes().
  int64_t context_length = 0;                    // Prompt and answer together.
  chat::ThinkingSettings default_thinking = {};  // For requests that say nothing of it.
  session::AnswerDefaults defaults = {};
  // While thinking, the model's own sampling counts and not what requests say of temperature and top_p, as
  // DeepSeek's service has it.
  bool own_sampling_while_thinking = false;
  // In chat completions the reasoning is `reasoning` too, as other servers and their clients call it.
  bool both_reasoning_fields = false;
  // A request with a field that is not known is refused; else it is answered and the field named.
  bool refuse_unknown_fields = false;
  ServerRole role = ServerRole::kBoth;
  bool shares_states = false;  // Kept states are in files that other servers may read.

  bool AnswersTo(std::string_view name) const;
  // OutOfRange for a text that has more tokens than the context, whatever it says: reading 60 MiB into tokens
  // takes half a minute.
  Status CheckLength(size_t text_bytes) const;
};

}  // namespace dsv4::server
