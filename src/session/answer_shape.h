// AnswerShape: the form of an answer, as a constraint on its tokens.
//   how long it may reason, and how long it is at least
//   the grammar of the whole answer: JSON of a schema, a call that must come
//   the grammar of its calls, once one has begun
//   texts and tokens that it may not have
// Source: chat-encoding.md 3.7 and 5.1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/program.h"
#include "grammar/rules/answer_grammar.h"
#include "sampling/token_constraint.h"
#include "session/text_model.h"

namespace dsv4::session {

struct AnswerShape {
  bool starts_in_reasoning = false;
  // The reasoning is closed after so many tokens; its closing marker counts as one more.
  std::optional<int64_t> max_reasoning_tokens;
  // Grammar of the whole answer, reasoning included (grammar/rules/answer_grammar.h); null: it is free.
  std::shared_ptr<const grammar::Program> grammar = nullptr;
  std::string grammar_field = {};  // The request's field, for errors.
  // Grammar of what stands behind the first "<M" of an answer that is free so far (ContentKind::kOpenCall);
  // null: nothing.
  std::shared_ptr<const grammar::Program> calls = nullptr;
  // Grammar of the whole answer too: texts without certain words (grammar/forbidden_text.h); null: any.
  std::shared_ptr<const grammar::Program> without_words = nullptr;
  int64_t min_tokens = 0;                    // No stop token in front of so many, where another may come.
  std::vector<int32_t> allowed_tokens = {};  // Stop tokens only where they are among them; empty: all.
  std::vector<int32_t> stop_tokens = {};     // End the answer; under a grammar only where it is complete.
};

// Null when the shape constrains nothing. Where its parts together allow no token, an answer that may be
// whole there ends, and else fails with InvalidArgument, which names the fields. `text` outlives it. Errors:
// those of TextModel::Trie, which a grammar needs.
Result<std::unique_ptr<sampling::TokenConstraint>> MakeConstraint(const TextModel& text,
                                                                  const AnswerShape& shape);

// Rules that have the chat format's markers; content and tools are the caller's.
grammar::AnswerRules RulesOf(const TextModel& text, bool starts_in_reasoning);

// An answer whose content satisfies a rule; without a chat format nothing stands in front of it. Errors:
// those of CompileAnswer and Trie.
Result<std::unique_ptr<sampling::TokenConstraint>> MakeRuleConstraint(const TextModel& text,
                                                                      bool starts_in_reasoning,
                                                                      const grammar::ContentRule& rule);

}  // namespace dsv4::session
