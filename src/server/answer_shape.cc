#include "server/answer_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "grammar/constraint.h"

namespace dsv4::server {
namespace {

class ShapeConstraint final : public sampling::TokenConstraint {
 public:
  ShapeConstraint(const ServedModel& model, const AnswerShape& shape,
                  std::vector<std::vector<int32_t>> openers)
      : in_reasoning_(shape.starts_in_reasoning),
        reasoning_left_(shape.max_reasoning_tokens.value_or(std::numeric_limits<int64_t>::max())),
        think_end_(model.special.think_end),
        openers_(std::move(openers)),
        done_(openers_.empty()),
        only_(static_cast<size_t>((model.vocab_size + 63) / 64)),
        unstoppable_(only_.size(), ~uint64_t{0}) {
    if (shape.content != nullptr) {
      content_.emplace(grammar::Matcher(shape.content, model.trie, shape.stop_tokens));
    }
    for (const int32_t token : shape.stop_tokens) unstoppable_[Word(token)] &= ~Bit(token);
  }

  std::span<const uint64_t> Allowed() override {
    if (in_reasoning_ && reasoning_left_ > 0)
      return done_ && !content_ ? std::span<const uint64_t>() : unstoppable_;
    if (!in_reasoning_ && content_) return content_->Allowed();
    if (!in_reasoning_ && done_) return {};
    std::fill(only_.begin(), only_.end(), 0);
    if (in_reasoning_) {
      only_[Word(think_end_)] |= Bit(think_end_);
    } else {
      for (const std::vector<int32_t>& opener : openers_)
        only_[Word(opener[position_])] |= Bit(opener[position_]);
    }
    return only_;
  }

  void Accept(int32_t token) override {
    if (in_reasoning_) {
      in_reasoning_ = token != think_end_;
      --reasoning_left_;
      return;
    }
    if (content_) {
      content_->Accept(token);
      return;
    }
    if (done_) return;
    std::erase_if(openers_, [&](const std::vector<int32_t>& opener) { return opener[position_] != token; });
    ++position_;
    // One opener is whole. None begins another: a name's closing quote tells them apart.
    done_ = std::any_of(openers_.begin(), openers_.end(),
                        [&](const std::vector<int32_t>& opener) { return opener.size() == position_; });
  }

 private:
  static size_t Word(int32_t token) { return static_cast<size_t>(token) / 64; }
  static uint64_t Bit(int32_t token) { return uint64_t{1} << (token % 64); }

  bool in_reasoning_;
  int64_t reasoning_left_;
  int32_t think_end_;
  std::vector<std::vector<int32_t>> openers_;  // Those that agree with what was sampled.
  size_t position_ = 0;                        // In the openers.
  bool done_;                                  // With the opener.
  std::vector<uint64_t> only_;
  std::vector<uint64_t> unstoppable_;
  std::optional<grammar::GrammarConstraint> content_;
};

}  // namespace

Result<std::unique_ptr<sampling::TokenConstraint>> MakeConstraint(const ServedModel& model,
                                                                  const AnswerShape& shape) {
  const bool caps = shape.starts_in_reasoning && shape.max_reasoning_tokens.has_value();
  if (!caps && shape.forced_tools.empty() && shape.content == nullptr) return nullptr;
  const chat::ChatProfile& profile = *model.profile;
  const std::string head = fmt::format("\n\n{}>\n{} name=\"", profile.OpenTag(profile.tool_calls),
                                       profile.OpenTag(profile.invoke));
  std::vector<std::vector<int32_t>> openers;
  for (const std::string& name : shape.forced_tools) {
    const std::vector<tokenizer::TextSpan> spans = {{head, true}, {name, false}, {"\">\n", true}};
    DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> opener, model.tokenizer.Encode(spans));
    openers.push_back(std::move(opener));
  }
  return std::make_unique<ShapeConstraint>(model, shape, std::move(openers));
}

}  // namespace dsv4::server
