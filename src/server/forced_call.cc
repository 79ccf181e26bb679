#include "server/forced_call.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsv4::server {
namespace {

class ForcedCall final : public sampling::TokenConstraint {
 public:
  ForcedCall(std::vector<std::vector<int32_t>> openers, bool reasoning, int32_t think_end, int64_t vocab_size,
             const std::vector<int32_t>& stop_tokens)
      : openers_(std::move(openers)),
        in_reasoning_(reasoning),
        think_end_(think_end),
        words_(static_cast<size_t>((vocab_size + 63) / 64)),
        unstoppable_(words_.size(), ~uint64_t{0}) {
    for (const int32_t token : stop_tokens)
      unstoppable_[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (token % 64));
  }

  std::span<const uint64_t> Allowed() override {
    if (in_reasoning_) return unstoppable_;
    if (done_) return {};
    std::fill(words_.begin(), words_.end(), 0);
    for (const std::vector<int32_t>& opener : openers_) {
      const int32_t token = opener[position_];
      words_[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
    }
    return words_;
  }

  void Accept(int32_t token) override {
    if (in_reasoning_) {
      in_reasoning_ = token != think_end_;
      return;
    }
    if (done_) return;
    std::erase_if(openers_, [&](const std::vector<int32_t>& opener) { return opener[position_] != token; });
    ++position_;
    // A whole opener: of two of which one begins the other, the names' closing quote has told them apart.
    done_ = std::any_of(openers_.begin(), openers_.end(),
                        [&](const std::vector<int32_t>& opener) { return opener.size() == position_; });
  }

 private:
  std::vector<std::vector<int32_t>> openers_;  // Those that agree with what was sampled.
  bool in_reasoning_;
  bool done_ = false;
  int32_t think_end_;
  size_t position_ = 0;
  std::vector<uint64_t> words_;
  std::vector<uint64_t> unstoppable_;
};

}  // namespace

Result<std::unique_ptr<sampling::TokenConstraint>> MakeForcedCall(const ServedModel& model,
                                                                  const std::vector<std::string>& names,
                                                                  bool starts_in_reasoning,
                                                                  const std::vector<int32_t>& stop_tokens) {
  const chat::ChatProfile& profile = *model.profile;
  std::vector<std::vector<int32_t>> openers;
  for (const std::string& name : names) {
    const std::string head = fmt::format("\n\n{}>\n{} name=\"", profile.OpenTag(profile.tool_calls),
                                         profile.OpenTag(profile.invoke));
    const std::vector<tokenizer::TextSpan> spans = {{head, true}, {name, false}, {"\">\n", true}};
    DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> opener, model.tokenizer.Encode(spans));
    openers.push_back(std::move(opener));
  }
  return std::make_unique<ForcedCall>(std::move(openers), starts_in_reasoning, model.special.think_end,
                                      model.vocab_size, stop_tokens);
}

}  // namespace dsv4::server
