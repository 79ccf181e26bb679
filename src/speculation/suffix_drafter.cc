// Drafter that quotes what followed the text's end when it stood earlier.
#include <algorithm>
#include <bit>

#include "speculation/drafter.h"
#include "speculation/suffix_automaton.h"

namespace dsv4::speculation {
namespace {

// 1, 2, 3, then two steps for each doubling: longer repeats are better evidence.
int EvidenceOf(int64_t length) {
  if (length <= 3) return static_cast<int>(std::max<int64_t>(length, 1)) - 1;
  const auto log2 = static_cast<int>(std::bit_width(static_cast<uint64_t>(length))) - 1;
  const bool upper_half = (length >> (log2 - 1) & 1) != 0;
  return std::min(kForcedEvidence - 1, 3 + 2 * (log2 - 2) + (upper_half ? 1 : 0));
}

class SuffixDrafter final : public Drafter {
 public:
  void Read(std::span<const int32_t> text) override {
    for (const int32_t token : text.subspan(automaton_.text().size())) automaton_.Append(token);
  }

  Draft Propose(int64_t most) override {
    const SuffixAutomaton::Repeat repeat = automaton_.LongestRepeat();
    Draft draft;
    if (repeat.length == 0) return draft;
    draft.evidence = EvidenceOf(repeat.length);
    const std::span<const int32_t> follows = automaton_.text().subspan(static_cast<size_t>(repeat.end));
    for (size_t i = 0; i < static_cast<size_t>(std::max<int64_t>(most, 0)); ++i) {
      // A repeat that reaches into its own continuation goes round.
      draft.tokens.push_back(i < follows.size() ? follows[i] : draft.tokens[i - follows.size()]);
    }
    return draft;
  }

 private:
  SuffixAutomaton automaton_;
};

}  // namespace

std::unique_ptr<Drafter> MakeSuffixDrafter() { return std::make_unique<SuffixDrafter>(); }

}  // namespace dsv4::speculation
