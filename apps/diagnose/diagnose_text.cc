// Tokenizer, chat format, rendering and id lists for the text checks.
#include "apps/diagnose/diagnose_text.h"

#include <fmt/format.h>

#include "apps/shared/chat_file.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/printable.h"
#include "base/json.h"
#include "session/prompt.h"

namespace dsv4::apps {

Result<std::string> RenderText(const chat::ChatProfile& profile, const std::vector<chat::Message>& messages,
                               const chat::RenderOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const chat::RenderedPrompt prompt, chat::RenderPrompt(profile, messages, options));
  return prompt.text();
}

Result<TextSubject> LoadTextSubject(const RunOptions& options, const ModelSource& source) {
  DSV4_ASSIGN_OR_RETURN(const std::string directory, source.RequireTextDirectory());
  DSV4_ASSIGN_OR_RETURN(session::TextModel text, session::TextModel::Load(directory, options.revision));
  TextSubject subject(std::move(text));
  subject.directory = directory;
  DSV4_ASSIGN_OR_RETURN(subject.config, source.Config());
  subject.vocab_size = subject.config.vocab_size;  // A tokenizer with more ids is for CheckPrompt to report.
  DSV4_ASSIGN_OR_RETURN(const std::string question, ReadPrompt(options));
  DSV4_ASSIGN_OR_RETURN(subject.messages, MakeMessages(options, question));
  subject.render = session::RenderOptionsFor(
      subject, options.thinking_mode == "chat" ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking,
      options.effort.empty() ? std::nullopt : std::optional(options.effort));
  DSV4_ASSIGN_OR_RETURN(session::Prompt prompt,
                        session::MakePrompt(subject, subject.messages, subject.render));
  subject.text = prompt.rendered.text();
  subject.ids = std::move(prompt.ids);
  return subject;
}

Result<std::optional<std::vector<tokenizer::TokenId>>> ReadIdList(const std::string& text,
                                                                  const std::string& what) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return Error(InvalidArgument(fmt::format("{}: empty", what)));
  const bool numbers = text.find_first_not_of("0123456789 \t\r\n") == std::string::npos;
  if (text[first] != '[' && text[first] != '{' && !numbers) return std::nullopt;
  if (text[first] != '{') {
    DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ParseTokenIds(text, what));
    return ids;
  }
  DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(text, what));
  for (const char* key : {"tokens", "prompt_token_ids", "token_ids", "input_ids"}) {
    if (!json.contains(key)) continue;
    const Json& list =
        json[key].is_array() && json[key].size() == 1 && json[key][0].is_array() ? json[key][0] : json[key];
    DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                          ParseTokenIds(list.dump(), fmt::format("{}: {}", what, key)));
    return ids;
  }
  return Error(InvalidArgument(
      fmt::format("{}: a JSON object without tokens, prompt_token_ids, token_ids or input_ids", what)));
}

std::string ShowToken(const tokenizer::Tokenizer& tokenizer, tokenizer::TokenId id) {
  if (!tokenizer.IsDefined(id)) return "<no token>";
  std::string text;
  for (const char c : Printable(tokenizer.TokenBytes(id))) {
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else {
      text += c;
    }
  }
  return fmt::format("\"{}\"", text);
}

}  // namespace dsv4::apps
