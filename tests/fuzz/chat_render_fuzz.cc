// JSON and the renderer on any bytes. Reading never crashes, writing is stable, and a conversation renders or
// gives a Status. Rendered text, read back by the streaming parser, never breaks an invariant of it.
//
// Input: one byte of options, then the JSON text of a message list. tests/fuzz/chat_render.dict helps.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "chat/api_policy.h"
#include "chat/completion_parser.h"
#include "chat/renderer.h"
#include "chat/thinking.h"

namespace dsv4::chat {
namespace {

void FuzzOne(const uint8_t* data, size_t size) {
  if (size < 1) return;
  const uint8_t bits = data[0];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto json = ReadJson(text, "fuzz", bits & 1 ? JsonDialect::kPython : JsonDialect::kRfc8259);
  if (!json) return;
  const std::string written = WriteJson(*json);
  const auto again = ReadJson(written, "written", JsonDialect::kPython);
  DSV4_CHECK(again.has_value()) << written;
  DSV4_CHECK(WriteJson(*again) == written) << written;

  const ChatProfile& profile = *FindChatProfile(bits & 2 ? "v4" : size % 2 == 0 ? "v4-0731" : "v4.1").value();
  (void)ResolveThinking(profile, *json).has_value();
  const auto messages = ParseMessages(*json, "messages");
  if (!messages) return;
  RenderOptions options;
  options.mode = bits & 4 ? ThinkingMode::kChat : ThinkingMode::kThinking;
  options.drop_thinking = bits & 8;
  options.null_is_empty = bits & 16;
  options.guard_closers = bits & 32;
  if (bits & 64) options.effort = "max";
  options.api_rules = bits & 128;
  const auto render = [&](const std::vector<Message>& list) {
    const auto prompt = RenderPrompt(profile, list, options);
    if (!prompt) return;
    bool last = !prompt->spans.empty() && !prompt->spans.front().is_template;
    for (const Span& span : prompt->spans) {
      DSV4_CHECK(!span.text.empty() && span.is_template != last) << span.text;
      last = span.is_template;
    }
    (void)ParseLenient(profile, prompt->text(), {.starts_in_reasoning = prompt->ends_in_reasoning});
  };
  render(*messages);
  if (auto normal = NormalizeApiMessages(profile, {.messages = *messages})) render(*normal);
}

}  // namespace
}  // namespace dsv4::chat

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::chat::FuzzOne(data, size);
  return 0;
}
