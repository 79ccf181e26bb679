#include "server/answer_shape.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "grammar/matcher.h"

namespace dsv4::server {
namespace {

class ShapeConstraint final : public sampling::TokenConstraint {
 public:
  ShapeConstraint(const ServedModel& model, const AnswerShape& shape)
      : in_reasoning_(shape.starts_in_reasoning),
        reasoning_left_(shape.max_reasoning_tokens.value_or(std::numeric_limits<int64_t>::max())),
        think_end_(model.special.think_end),
        mask_(model.vocab_size) {
    if (shape.grammar != nullptr) answer_.emplace(shape.grammar, model.trie, shape.stop_tokens);
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

 private:
  bool in_reasoning_;
  int64_t reasoning_left_;
  int32_t think_end_;
  std::optional<grammar::Matcher> answer_;
  grammar::TokenMask mask_;
};

}  // namespace

std::unique_ptr<sampling::TokenConstraint> MakeConstraint(const ServedModel& model,
                                                          const AnswerShape& shape) {
  const bool caps = shape.starts_in_reasoning && shape.max_reasoning_tokens.has_value();
  if (!caps && shape.grammar == nullptr) return nullptr;
  return std::make_unique<ShapeConstraint>(model, shape);
}

}  // namespace dsv4::server
