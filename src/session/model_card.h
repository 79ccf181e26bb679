// ModelCard: a model's own words on its answers, beside its text side. How long they may be, and what to say where they are noise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "session/answer_options.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::session {

struct ModelCard {
  // `max_new_tokens` of generation_config.json, and `dsv4_notice` of the head of README.md (YAML between lines of "---", as model cards have it).
  // Either file may be missing. InvalidArgument for a limit that is none.
  static Result<ModelCard> Read(const std::string& directory);

  // The shorter of each length and the model's own. A default that was set to another value than the built-in one stays.
  AnswerDefaults Limit(AnswerDefaults defaults) const;

  std::optional<int64_t> max_new_tokens;
  std::string notice;  // One line, for texts whose words the model does not know.
};

// Whether hardly a word of `text` is one token: another language than the tokenizer was made of, or no words at all. False for fewer than three
// words of ASCII, which say too little.
bool HasUnknownWords(const tokenizer::Tokenizer& tokenizer, std::string_view text);

}  // namespace dsv4::session
