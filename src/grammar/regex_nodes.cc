// Nodes of a regular expression: automata of its parts, and counters of its repetitions.
#include "grammar/regex_nodes.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace dsv4::grammar {
namespace {

constexpr size_t kTrialStates = 20'000;
constexpr int64_t kTrialWork = 2'000'000;

class Maker {
 public:
  Maker(GrammarParts& parts, const std::string& excluded) : parts_(parts), excluded_(excluded) {}

  Result<uint32_t> Parts(const Regex& regex, uint32_t next) {
    if (!HasLargeCount(*regex) || parts_.limits.work_left < 0) return Error(parts_.limits.TooLarge());
    const std::vector<Regex> sequence = SequenceOf(regex);
    if (sequence.size() > 1) return Sequence(sequence, next);
    const RegexNode& only = *sequence[0];
    if (only.kind == RegexNode::Kind::kRepeat) return Repetition(only, next);
    std::vector<uint32_t> options;
    for (const Regex& part : only.parts) {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Node(part, next));
    }
    return parts_.builder.Split(std::move(options));
  }

 private:
  Result<uint32_t> Node(const Regex& regex, uint32_t next) {
    DSV4_TRY(parts_.builder.CheckSize());
    if (!HasLargeCount(*regex)) return Terminal(regex, next);
    const auto trial = [&] {
      const TrialLimits limits(parts_.limits);
      return Terminal(regex, next);
    };
    const Result<uint32_t> node = trial();
    return node ? node : Parts(regex, next);
  }

  Result<uint32_t> Terminal(const Regex& regex, uint32_t next) {
    DSV4_ASSIGN_OR_RETURN(Dfa dfa, Dfa::Compile(regex, parts_.limits));
    return parts_.TerminalWithout(std::move(dfa), excluded_, next);
  }

  // From the end; parts in a row without a large count are one.
  Result<uint32_t> Sequence(const std::vector<Regex>& sequence, uint32_t next) {
    for (size_t end = sequence.size(); end > 0;) {
      size_t begin = end - 1;
      if (!HasLargeCount(*sequence[begin])) {
        while (begin > 0 && !HasLargeCount(*sequence[begin - 1])) --begin;
      }
      const auto first = sequence.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = sequence.begin() + static_cast<std::ptrdiff_t>(end);
      DSV4_ASSIGN_OR_RETURN(next, Node(Concat({first, last}), next));
      end = begin;
    }
    return next;
  }

  Result<uint32_t> Repetition(const RegexNode& repeat, uint32_t next) {
    if (repeat.max == 0) return next;
    const Regex& part = repeat.parts[0];
    const bool may_be_empty = MayBeEmpty(*part);
    DSV4_ASSIGN_OR_RETURN(const uint32_t entry, Node(may_be_empty ? NonEmpty(part) : part, parts_.end()));
    const auto min = static_cast<uint32_t>(may_be_empty ? 0 : repeat.min);
    if (repeat.max != kUnbounded)
      return parts_.builder.Repeat(entry, min, static_cast<uint32_t>(repeat.max), next);
    // Behind the least count the turns are not told apart.
    const uint32_t loop = parts_.builder.Split({});
    parts_.builder.SetOptions(loop, {parts_.builder.Call(entry, loop), next});
    return min == 0 ? loop : parts_.builder.Repeat(entry, min, min, loop);
  }

  GrammarParts& parts_;
  const std::string& excluded_;
};

}  // namespace

TrialLimits::TrialLimits(DfaLimits& all)
    : all_(all), before_(all), given_(std::min(all.work_left, kTrialWork)) {
  all_ = {.max_states = std::min(all.max_states, kTrialStates), .work_left = given_};
}

TrialLimits::~TrialLimits() {
  all_ = {.max_states = before_.max_states,
          .work_left = before_.work_left - (given_ - std::max<int64_t>(0, all_.work_left))};
}

Result<uint32_t> RegexNodes(GrammarParts& parts, const Regex& regex, const std::string& excluded,
                            uint32_t next) {
  return Maker(parts, excluded).Parts(regex, next);
}

}  // namespace dsv4::grammar
