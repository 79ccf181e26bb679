// JSON form of a parsed completion, as fixtures have it.
#include "chat/completion.h"

namespace dsv4::chat {

JsonValue ToJson(const ParsedCompletion& completion) {
  std::vector<JsonValue> calls;
  for (const ParsedCall& call : completion.tool_calls) {
    JsonValue function = JsonValue::Object(
        {{"name", JsonValue::String(call.name)}, {"arguments", JsonValue::String(call.arguments)}});
    calls.push_back(
        JsonValue::Object({{"type", JsonValue::String("function")}, {"function", std::move(function)}}));
  }
  return JsonValue::Object({{"reasoning_content", JsonValue::String(completion.reasoning_content)},
                            {"content", JsonValue::String(completion.content)},
                            {"tool_calls", JsonValue::Array(std::move(calls))}});
}

}  // namespace dsv4::chat
