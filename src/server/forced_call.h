// ForcedCall: makes an answer begin with a tool call (tool_choice required, or one named), by allowing only the tokens of the
// block's opener and of a tool's name. What follows, the arguments, is free. Source: chat-encoding.md 3.7.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sampling/token_constraint.h"
#include "server/served_model.h"

namespace dsv4::server {

// `names`: the tools that may be called, at least one. `starts_in_reasoning`: reasoning may come first; it cannot end the answer.
// `stop_tokens` must not come before the call. Errors: those of Tokenizer::Encode.
Result<std::unique_ptr<sampling::TokenConstraint>> MakeForcedCall(const ServedModel& model,
                                                                  const std::vector<std::string>& names,
                                                                  bool starts_in_reasoning,
                                                                  const std::vector<int32_t>& stop_tokens);

}  // namespace dsv4::server
