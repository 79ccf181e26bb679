// Parsed completion. Source: chat-encoding.md 3.2. Source: chat-encoding.md 3.2.
#pragma once

#include <string>
#include <vector>

#include "chat/json_value.h"

namespace dsv4::chat {

struct ParsedCall {
  std::string name;
  std::string arguments;  // JSON text of an object; the strict parser splices values in unchecked

  friend bool operator==(const ParsedCall&, const ParsedCall&) = default;
};

struct ParsedCompletion {
  std::string reasoning_content;
  std::string content;
  std::vector<ParsedCall> tool_calls;

  friend bool operator==(const ParsedCompletion&, const ParsedCompletion&) = default;
};

// {"reasoning_content", "content", "tool_calls": [{"type": "function", "function": {"name", "arguments"}}]}.
JsonValue ToJson(const ParsedCompletion& completion);

}  // namespace dsv4::chat
