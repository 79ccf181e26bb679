// Common subject of the text checks of `diagnose`: tokenizer, chat format and the conversation under test. No
// weights are read.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/shared/run_options.h"
#include "chat/renderer.h"
#include "model/config/config.h"
#include "session/text_model.h"

namespace dsv4::apps {

struct TextSubject : session::TextModel {
  explicit TextSubject(session::TextModel model) : TextModel(std::move(model)) {}

  std::string directory;
  model::ModelConfig config;
  std::vector<chat::Message> messages;
  chat::RenderOptions render;
  std::string text;                     // The conversation as we render it,
  std::vector<tokenizer::TokenId> ids;  // and its ids.
};

// Reads config.json and tokenizer.json of `source` and renders the conversation of `options`. Errors name the
// file, marker or message at fault.
Result<TextSubject> LoadTextSubject(const RunOptions& options, const ModelSource& source);

// The rendering of the subject's conversation with another format or other options.
Result<std::string> RenderText(const chat::ChatProfile& profile, const std::vector<chat::Message>& messages,
                               const chat::RenderOptions& options);

// Token ids from a file's text: a JSON list, an object with such a list, or numbers separated by white space.
// An object has the list under `tokens` (a vLLM /tokenize reply), `prompt_token_ids`, `token_ids` or
// `input_ids`; lists of one list are opened. Returns nullopt for anything else: that is a text.
// InvalidArgument for JSON that holds none of these.
Result<std::optional<std::vector<tokenizer::TokenId>>> ReadIdList(const std::string& text,
                                                                  const std::string& what);

// One token as people can read it: its text with control characters escaped, "<no token>" without one.
std::string ShowToken(const tokenizer::Tokenizer& tokenizer, tokenizer::TokenId id);

}  // namespace dsv4::apps
