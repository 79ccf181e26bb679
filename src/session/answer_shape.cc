#include "session/answer_shape.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "grammar/matcher.h"

namespace dsv4::session {
namespace {

class ShapeConstraint final : public sampling::TokenConstraint {
 public:
  // `trie` may be null where the shape has no grammar.
  ShapeConstraint(const TextModel& text, const AnswerShape& shape,
                  std::shared_ptr<const grammar::TokenTrie> trie)
      : in_reasoning_(shape.starts_in_reasoning),
        reasoning_left_(shape.max_reasoning_tokens.value_or(std::numeric_limits<int64_t>::max())),
        think_end_(text.special->think_end),
        mask_(text.vocab_size) {
    if (shape.grammar != nullptr) answer_.emplace(shape.grammar, std::move(trie), shape.stop_tokens);
  }

  std::span<const uint64_t> Allowed() override {
    if (answer_) {
      answer_->Mask(mask_);
      // Only a reasoning can be closed: it may have ended without the marker, in a call.
      in_reasoning_ = in_reasoning_ && mask_.IsAllowed(think_end_);
    }
    if (in_reasoning_ && reasoning_left_ <= 0) {
      mask_.Clear();
      mask_.Allow(think_end_);
    } else if (!answer_) {
      return {};
    }
    return mask_.words();
  }

  void Accept(int32_t token) override {
    if (in_reasoning_) {
      in_reasoning_ = token != think_end_;
      --reasoning_left_;
    }
    if (!answer_) return;
    // The sampler takes what Allowed() says.
    const Status status = answer_->Accept(token);
    DSV4_CHECK(status.ok()) << status.ToString();
  }

  size_t CountAllowed(std::span<const int32_t> draft) override {
    size_t count = answer_ ? answer_->CountAllowed(draft) : draft.size();
    if (!in_reasoning_) return count;
    // A budget that ends within the draft.
    const auto marker = std::ranges::find(draft, think_end_) - draft.begin();
    if (marker > reasoning_left_)
      count = std::min(count, static_cast<size_t>(std::max<int64_t>(0, reasoning_left_)));
    return count;
  }

  std::vector<int32_t> Forced(size_t most) override {
    if (in_reasoning_ && reasoning_left_ <= 0)
      return most > 0 ? std::vector<int32_t>{think_end_} : std::vector<int32_t>();
    return answer_ ? answer_->ForcedTokens(most) : std::vector<int32_t>();
  }

 private:
  bool in_reasoning_;
  int64_t reasoning_left_;
  int32_t think_end_;
  std::optional<grammar::Matcher> answer_;
  grammar::TokenMask mask_;
};

}  // namespace

Result<std::unique_ptr<sampling::TokenConstraint>> MakeConstraint(const TextModel& text,
                                                                  const AnswerShape& shape) {
  const bool caps = shape.starts_in_reasoning && shape.max_reasoning_tokens.has_value();
  if (!caps && shape.grammar == nullptr) return nullptr;
  std::shared_ptr<const grammar::TokenTrie> trie;
  if (shape.grammar != nullptr) {
    DSV4_ASSIGN_OR_RETURN(trie, text.Trie());
  }
  return std::make_unique<ShapeConstraint>(text, shape, std::move(trie));
}

grammar::AnswerRules RulesOf(const TextModel& text, bool starts_in_reasoning) {
  const chat::ChatProfile& profile = *text.profile;
  return {.starts_in_reasoning = starts_in_reasoning,
          .think_end = std::string(profile.think_close),
          .tags = {.marker = std::string(profile.dsml),
                   .tool_calls = std::string(profile.tool_calls),
                   .invoke = std::string(profile.invoke),
                   .parameter = std::string(profile.parameter)}};
}

Result<std::unique_ptr<sampling::TokenConstraint>> MakeJsonConstraint(const TextModel& text,
                                                                      bool starts_in_reasoning,
                                                                      const std::string& schema,
                                                                      const std::string& label) {
  grammar::AnswerRules rules = RulesOf(text, starts_in_reasoning);
  rules.content = grammar::ContentKind::kJson;
  rules.schema = schema;
  rules.schema_label = label;
  AnswerShape shape = {.starts_in_reasoning = starts_in_reasoning, .stop_tokens = text.StopTokens()};
  DSV4_ASSIGN_OR_RETURN(shape.grammar, grammar::CompileAnswer(rules));
  return MakeConstraint(text, shape);
}

}  // namespace dsv4::session
