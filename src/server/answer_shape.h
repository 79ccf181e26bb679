// AnswerShape: what an answer must look like beside what it says, as a constraint on its tokens: how long it may reason, and the grammar of
// the whole of it (calls of tools, JSON of a schema). Source: chat-encoding.md 3.7 and 5.1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "grammar/program.h"
#include "sampling/token_constraint.h"
#include "server/served_model.h"

namespace dsv4::server {

struct AnswerShape {
  bool starts_in_reasoning = false;
  // The reasoning is closed after so many tokens; its closing marker counts as one more.
  std::optional<int64_t> max_reasoning_tokens;
  // Of the whole answer, reasoning included (grammar/answer_grammar.h); null: it is free.
  std::shared_ptr<const grammar::Program> grammar = nullptr;
  std::vector<int32_t> stop_tokens;  // End the answer; under a grammar only where it is complete.
};

// Null when the shape constrains nothing. A grammar needs ServedModel::trie.
std::unique_ptr<sampling::TokenConstraint> MakeConstraint(const ServedModel& model, const AnswerShape& shape);

}  // namespace dsv4::server
