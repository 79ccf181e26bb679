// Prompts from conversations: spans encoded safely, and lengths at which states are worth keeping.
#include "session/prompt.h"

#include <algorithm>

namespace dsv4::session {

chat::RenderOptions RenderOptionsFor(const TextModel& text, chat::ThinkingMode mode,
                                     const std::optional<std::string>& effort) {
  chat::RenderOptions options = {.mode = mode, .effort = effort, .null_is_empty = true};
  if (!options.effort && !text.profile->default_effort.empty()) options.effort = text.profile->default_effort;
  return options;
}

Result<Prompt> MakePrompt(const TextModel& text, std::span<const chat::Message> messages,
                          const chat::RenderOptions& options, const std::function<Status(size_t)>& check_size,
                          size_t max_tokens) {
  Prompt prompt;
  DSV4_ASSIGN_OR_RETURN(prompt.rendered, chat::RenderPrompt(*text.profile, messages, options));
  std::vector<tokenizer::TextSpan> spans;
  size_t num_bytes = 0;
  for (const chat::Span& span : prompt.rendered.spans) {
    spans.push_back({span.text, span.is_template});
    num_bytes += span.text.size();
  }
  if (check_size) DSV4_TRY(check_size(num_bytes));
  DSV4_ASSIGN_OR_RETURN(prompt.ids, text.tokenizer.Encode(spans, max_tokens));
  prompt.notice = text.card.NoticeOn(text.tokenizer, messages);
  return prompt;
}

std::vector<int64_t> BranchPoints(const TextModel& text, std::span<const int32_t> prompt) {
  if (!text.special) return {};
  const auto is_user = [&](int32_t token) { return token == text.special->user; };
  const auto first = std::find_if(prompt.begin(), prompt.end(), is_user);
  if (first == prompt.end()) return {};
  const auto last = std::find_if(prompt.rbegin(), prompt.rend(), is_user);
  return {first - prompt.begin() + 1, prompt.rend() - last};
}

}  // namespace dsv4::session
