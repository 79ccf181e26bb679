// AnswerShape: what an answer must look like beside what it says, as a constraint on its tokens: how long it may reason, and that it
// begins with a tool call (tool_choice required, or one named) or is JSON of a schema (response_format). A call is forced by allowing only the tokens of the block's opener
// and of a tool's name; its arguments are free. Source: chat-encoding.md 3.7 and 5.1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/program.h"
#include "sampling/token_constraint.h"
#include "server/served_model.h"

namespace dsv4::server {

struct AnswerShape {
  bool starts_in_reasoning = false;
  // The reasoning is closed after so many tokens; its closing marker counts as one more.
  std::optional<int64_t> max_reasoning_tokens;
  // The answer begins with a call of one of these tools; empty: it is free. Stop tokens cannot come before.
  std::vector<std::string> forced_tools;
  // What the answer behind the reasoning is made of; null: it is free. Not beside forced tools. Stop tokens come where it is complete.
  std::shared_ptr<const grammar::Program> content = nullptr;
  std::vector<int32_t> stop_tokens;
};

// Null when the shape constrains nothing. Errors: those of Tokenizer::Encode.
Result<std::unique_ptr<sampling::TokenConstraint>> MakeConstraint(const ServedModel& model,
                                                                  const AnswerShape& shape);

}  // namespace dsv4::server
