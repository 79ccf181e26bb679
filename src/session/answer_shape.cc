// Constraint on an answer's tokens: reasoning budget, grammar, minimum length and forbidden stops.
#include "session/answer_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "grammar/matcher.h"

namespace dsv4::session {
namespace {

// Sees the beginning of a call in a free text: "<M", however its tokens spell it.
class CallOpener {
 public:
  explicit CallOpener(const TextModel& text)
      : tokenizer_(&text.tokenizer), opener_("<" + std::string(text.profile->dsml)) {}

  // Whether the text ends with it behind `token`. A token that goes on behind it was no marker, and the text stays free.
  bool Read(int32_t token) {
    tail_ += tokenizer_->TokenBytes(token);
    const bool found = tail_.ends_with(opener_);
    if (tail_.size() >= opener_.size()) tail_.erase(0, tail_.size() - (opener_.size() - 1));
    return found;
  }

 private:
  const tokenizer::Tokenizer* tokenizer_;
  std::string opener_;
  std::string tail_;
};

class ShapeConstraint final : public sampling::TokenConstraint {
 public:
  // `trie` may be null where the shape has no grammar.
  ShapeConstraint(const TextModel& text, const AnswerShape& shape,
                  std::shared_ptr<const grammar::TokenTrie> trie)
      : trie_(std::move(trie)),
        stop_tokens_(shape.stop_tokens),
        in_reasoning_(shape.starts_in_reasoning),
        reasoning_left_(shape.max_reasoning_tokens.value_or(kNoEnd)),
        think_end_(text.special ? text.special->think_end : -1),
        calls_(shape.calls),
        tokens_needed_(shape.min_tokens),
        grammar_field_(shape.grammar_field.empty() ? "tools" : shape.grammar_field),
        allowed_(shape.allowed_tokens),
        mask_(text.vocab_size),
        other_mask_(text.vocab_size),
        answer_mask_(text.vocab_size),
        words_mask_(text.vocab_size) {
    if (shape.grammar != nullptr) answer_.emplace(shape.grammar, trie_, stop_tokens_);
    if (shape.without_words != nullptr) words_.emplace(shape.without_words, trie_, stop_tokens_);
    if (calls_ != nullptr) opener_.emplace(text);
  }

  bool IsWaiting() const override {
    const bool counts = in_reasoning_ && reasoning_left_ != kNoEnd;
    return !answer_ && !words_ && allowed_.empty() && tokens_needed_ <= 0 && !counts;
  }

  bool Prepare(std::chrono::steady_clock::time_point deadline) override {
    if (answer_ && !answer_->MaskUntil(answer_mask_, deadline)) return false;
    return !words_ || words_->MaskUntil(words_mask_, deadline);
  }

  std::span<const uint64_t> Allowed() override {
    Prepare(std::chrono::steady_clock::time_point::max());
    if (answer_) {
      mask_ = answer_mask_;
      // Only a reasoning can be closed: it may have ended without the marker, in a call.
      in_reasoning_ = in_reasoning_ && mask_.IsAllowed(think_end_);
    }
    const bool is_spent = in_reasoning_ && reasoning_left_ <= 0;
    if (failed_) {
      mask_.Clear();
      return mask_.words();
    }
    if (!answer_ && !words_ && allowed_.empty() && tokens_needed_ <= 0 && !is_spent) return {};
    if (!answer_) std::ranges::fill(mask_.words(), ~uint64_t{0});
    if (words_) And(words_mask_);
    if (!allowed_.empty()) {
      other_mask_.Clear();
      for (const int32_t token : allowed_) other_mask_.Allow(token);
      And(other_mask_);
    }
    if (is_spent) {
      mask_.Clear();
      mask_.Allow(think_end_);
    }
    if (tokens_needed_ > 0) ForbidStops();
    // A text that may end where nothing else may come ends there. In front of its first token it has not begun.
    if (num_accepted_ > 0 && mask_.IsNone() && !in_reasoning_ && (!answer_ || answer_->IsComplete())) {
      for (const int32_t token : stop_tokens_) mask_.Allow(token);
    }
    return mask_.words();
  }

  Status WhyNone() const override {
    if (failed_) return InvalidArgument(fmt::format("{}: too many readings of one text", grammar_field_));
    std::vector<std::string_view> fields;
    if (!allowed_.empty()) fields.emplace_back("allowed_token_ids");
    if (words_) fields.emplace_back("bad_words");
    if (answer_) fields.emplace_back(grammar_field_);
    return InvalidArgument(fmt::format("{}: no token is left that {} at output token {}",
                                       fmt::join(fields, ", "),
                                       fields.size() > 1 ? "all of them allow" : "it allows", num_accepted_));
  }

  std::unique_ptr<sampling::TokenConstraint> Copy() const override {
    return std::make_unique<ShapeConstraint>(*this);
  }

  void Accept(int32_t token) override {
    --tokens_needed_;
    ++num_accepted_;
    if (in_reasoning_) {
      in_reasoning_ = token != think_end_;
      if (reasoning_left_ != kNoEnd) --reasoning_left_;
    }
    if (words_) Take(*words_, token);
    if (answer_) {
      Take(*answer_, token);
    } else if (opener_ && opener_->Read(token)) {
      answer_.emplace(std::move(calls_), trie_, stop_tokens_);
      in_reasoning_ = false;
    }
  }

  size_t CountAllowed(std::span<const int32_t> draft) override {
    size_t count = answer_ ? answer_->CountAllowed(draft) : UntilACall(draft);
    if (words_) count = std::min(count, words_->CountAllowed(draft));
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
  static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

  void And(const grammar::TokenMask& other) {
    for (size_t i = 0; i < mask_.words().size(); ++i) mask_.words()[i] &= other.words()[i];
  }

  // If nothing else may come the answer ends all the same.
  void ForbidStops() {
    std::vector<int32_t> allowed;
    for (const int32_t token : stop_tokens_) {
      if (mask_.IsAllowed(token)) allowed.push_back(token);
      mask_.Forbid(token);
    }
    if (!mask_.IsNone()) return;
    for (const int32_t token : allowed) mask_.Allow(token);
  }

  // The sampler takes what Allowed() says. Of a grammar with too many readings of a text at one time that may not go on; then sampling ends
  // with an error.
  void Take(grammar::Matcher& matcher, int32_t token) { failed_ = failed_ || !matcher.Accept(token).ok(); }

  // Tokens up to the one behind which a call has to be watched.
  size_t UntilACall(std::span<const int32_t> draft) const {
    if (!opener_) return draft.size();
    CallOpener opener = *opener_;
    for (size_t i = 0; i < draft.size(); ++i) {
      if (opener.Read(draft[i])) return i + 1;
    }
    return draft.size();
  }

  std::shared_ptr<const grammar::TokenTrie> trie_;
  std::vector<int32_t> stop_tokens_;
  bool in_reasoning_;
  int64_t reasoning_left_;
  int32_t think_end_;
  std::optional<grammar::Matcher> answer_;  // From the beginning, or of calls_ since one has begun.
  std::shared_ptr<const grammar::Program> calls_;
  std::optional<CallOpener> opener_;
  std::optional<grammar::Matcher> words_;
  int64_t tokens_needed_;
  int64_t num_accepted_ = 0;
  std::string grammar_field_;
  std::vector<int32_t> allowed_;
  grammar::TokenMask mask_;
  grammar::TokenMask other_mask_;
  grammar::TokenMask answer_mask_;  // From answer_ and words_, as far as they have come.
  grammar::TokenMask words_mask_;
  bool failed_ = false;  // Nothing is allowed any more.
};

}  // namespace

Result<std::unique_ptr<sampling::TokenConstraint>> MakeConstraint(const TextModel& text,
                                                                  const AnswerShape& shape) {
  const bool caps = shape.starts_in_reasoning && shape.max_reasoning_tokens.has_value();
  const bool has_grammar =
      shape.grammar != nullptr || shape.calls != nullptr || shape.without_words != nullptr;
  if (!caps && !has_grammar && shape.min_tokens <= 0 && shape.allowed_tokens.empty()) return nullptr;
  std::shared_ptr<const grammar::TokenTrie> trie;
  if (has_grammar) {
    DSV4_ASSIGN_OR_RETURN(trie, text.Trie());
  }
  return std::make_unique<ShapeConstraint>(text, shape, std::move(trie));
}

grammar::AnswerRules RulesOf(const TextModel& text, bool starts_in_reasoning) {
  if (text.profile == nullptr) return {};
  const chat::ChatProfile& profile = *text.profile;
  return {.starts_in_reasoning = starts_in_reasoning,
          .think_end = std::string(profile.think_close),
          .tags = {.marker = std::string(profile.dsml),
                   .tool_calls = std::string(profile.tool_calls),
                   .invoke = std::string(profile.invoke),
                   .parameter = std::string(profile.parameter)}};
}

Result<std::unique_ptr<sampling::TokenConstraint>> MakeRuleConstraint(const TextModel& text,
                                                                      bool starts_in_reasoning,
                                                                      const grammar::ContentRule& rule) {
  grammar::AnswerRules rules = RulesOf(text, starts_in_reasoning);
  rules.content = grammar::ContentKind::kRule;
  rules.rule = rule;
  AnswerShape shape = {.starts_in_reasoning = starts_in_reasoning, .stop_tokens = text.StopTokens()};
  DSV4_ASSIGN_OR_RETURN(shape.grammar, grammar::CompileAnswer(rules));
  return MakeConstraint(text, shape);
}

}  // namespace dsv4::session
