// Byte automata: determinisation, minimisation, intersection, difference, and multiples of decimals.
#include "grammar/dfa.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <unordered_map>

#include "base/text.h"

namespace dsv4::grammar {
namespace {

// A nondeterministic automaton: a state has empty edges, and at most one edge for a set of bytes.
class Nfa {
 public:
  explicit Nfa(size_t max_states) : max_states_(max_states) {}

  // Adds `regex` between two states; false when it grows too large.
  bool Add(const RegexNode& regex, uint32_t from, uint32_t to) {
    switch (regex.kind) {
      case RegexNode::Kind::kBytes:
        return AddBytes(regex.bytes, from, to);
      case RegexNode::Kind::kConcat:
        return AddSequence(regex, static_cast<int>(regex.parts.size()), from, to);
      case RegexNode::Kind::kEither:
        return std::all_of(regex.parts.begin(), regex.parts.end(), [&](const Regex& part) {
          const uint32_t inner = AddState();
          empty_[from].push_back(inner);
          return Add(*part, inner, to);
        });
      case RegexNode::Kind::kRepeat:
        return AddRepeat(regex, from, to);
    }
    return false;
  }

  uint32_t AddState() {
    empty_.emplace_back();
    set_of_.push_back(kNoSet);
    target_.push_back(0);
    return static_cast<uint32_t>(empty_.size() - 1);
  }

  // Adds what `states` reach by empty edges; sorted. Returns how many were looked at.
  size_t Close(std::vector<uint32_t>& states) {
    stamp_.resize(empty_.size());
    ++now_;
    for (const uint32_t state : states) stamp_[state] = now_;
    for (size_t i = 0; i < states.size(); ++i) {
      for (const uint32_t next : empty_[states[i]]) {
        if (stamp_[next] == now_) continue;
        stamp_[next] = now_;
        states.push_back(next);
      }
    }
    const size_t looked_at = states.size();
    // States without an edge for bytes have done their part; `final` must stay.
    std::erase_if(states, [&](uint32_t state) { return set_of_[state] == kNoSet && state != kFinal; });
    std::sort(states.begin(), states.end());
    return looked_at;
  }

  size_t num_states() const { return empty_.size(); }

  static constexpr uint32_t kFinal = 1;
  static constexpr uint32_t kNoSet = UINT32_MAX;
  const std::vector<ByteSet>& sets() const { return sets_; }
  uint32_t set_of(uint32_t state) const { return set_of_[state]; }
  uint32_t target(uint32_t state) const { return target_[state]; }

 private:
  bool AddBytes(const ByteSet& bytes, uint32_t from, uint32_t to) {
    const auto found = std::find(sets_.begin(), sets_.end(), bytes);
    const uint32_t state = AddState();
    empty_[from].push_back(state);
    set_of_[state] = static_cast<uint32_t>(found - sets_.begin());
    target_[state] = to;
    if (found == sets_.end()) sets_.push_back(bytes);
    return empty_.size() <= max_states_;
  }

  bool AddSequence(const RegexNode& regex, int count, uint32_t from, uint32_t to) {
    for (int i = 0; i < count; ++i) {
      const uint32_t next = AddState();
      const RegexNode& part =
          regex.kind == RegexNode::Kind::kRepeat ? *regex.parts[0] : *regex.parts[static_cast<size_t>(i)];
      if (empty_.size() > max_states_ || !Add(part, from, next)) return false;
      from = next;
    }
    empty_[from].push_back(to);
    return true;
  }

  bool AddRepeat(const RegexNode& regex, uint32_t from, uint32_t to) {
    const uint32_t needed = AddState();
    if (!AddSequence(regex, regex.min, from, needed)) return false;
    if (regex.max == kUnbounded) {
      const uint32_t loop = AddState();
      empty_[needed].push_back(loop);
      empty_[loop].push_back(to);
      return Add(*regex.parts[0], loop, loop);
    }
    uint32_t last = needed;
    for (int i = regex.min; i < regex.max; ++i) {
      const uint32_t next = AddState();
      empty_[last].push_back(to);
      if (empty_.size() > max_states_ || !Add(*regex.parts[0], last, next)) return false;
      last = next;
    }
    empty_[last].push_back(to);
    return true;
  }

  size_t max_states_;
  std::vector<std::vector<uint32_t>> empty_;
  std::vector<uint32_t> set_of_;  // By state, index into sets_.
  std::vector<uint32_t> target_;  // By state, where the bytes lead.
  std::vector<ByteSet> sets_;
  std::vector<uint32_t> stamp_;
  uint32_t now_ = 0;
};

struct HashStates {
  size_t operator()(const std::vector<uint32_t>& states) const {
    return XXH3_64bits(states.data(), states.size() * sizeof(uint32_t));
  }
};

}  // namespace

Status DfaLimits::TooLarge() const {
  if (work_left < 0) return ResourceExhausted("the automata take too long to make");
  return ResourceExhausted(fmt::format("an automaton of more than {}", Counted(max_states, "state")));
}

uint32_t Dfa::AddState(bool accepting) {
  accepting_.push_back(accepting ? 1 : 0);
  next_.resize(next_.size() + num_classes_, kDead);
  return static_cast<uint32_t>(accepting_.size() - 1);
}

Result<Dfa> Dfa::Compile(const Regex& regex, DfaLimits& limits) {
  if (std::optional<Result<Dfa>> counted = CompileCounted(regex, limits)) return std::move(*counted);
  return CompileStates(regex, limits);
}

Result<Dfa> Dfa::CompileStates(const Regex& regex, DfaLimits& limits) {
  if (NumStates(*regex) > static_cast<double>(4 * limits.max_states)) return Error(limits.TooLarge());
  Nfa nfa(4 * limits.max_states);
  const uint32_t start = nfa.AddState();
  const uint32_t last = nfa.AddState();
  if (!nfa.Add(*regex, start, last)) return Error(limits.TooLarge());
  limits.work_left -= static_cast<int64_t>(nfa.num_states());

  // Bytes that are in the same sets are one class; numbered by their first bytes.
  Classes classes = {};
  size_t num_classes = 1;
  for (const ByteSet& set : nfa.sets()) {
    std::array<uint16_t, 512> split;  // By old class and whether the set has the byte; 256 is none yet.
    split.fill(256);
    num_classes = 0;
    for (size_t byte = 0; byte < 256; ++byte) {
      uint16_t& refined = split[2 * size_t{classes[byte]} + (set[byte] ? 1 : 0)];
      if (refined == 256) refined = static_cast<uint16_t>(num_classes++);
      classes[byte] = static_cast<uint8_t>(refined);
    }
  }
  std::vector<uint8_t> representatives;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (classes[byte] == representatives.size()) representatives.push_back(static_cast<uint8_t>(byte));
  }

  Dfa dfa(classes, representatives.size());
  std::unordered_map<std::vector<uint32_t>, uint32_t, HashStates> ids;
  std::vector<const std::vector<uint32_t>*> subsets;
  const auto id_of = [&](std::vector<uint32_t>& subset) {
    limits.work_left -= static_cast<int64_t>(nfa.Close(subset));
    limits.work_left -= 4 * static_cast<int64_t>(subset.size());  // Sorted, hashed and perhaps kept.
    const bool accepting = std::binary_search(subset.begin(), subset.end(), Nfa::kFinal);
    const auto [found, is_new] = ids.try_emplace(subset, static_cast<uint32_t>(subsets.size()));
    if (is_new) {
      dfa.AddState(accepting);
      subsets.push_back(&found->first);
    }
    return found->second;
  };
  std::vector<uint32_t> targets = {start};
  id_of(targets);
  for (uint32_t state = 0; state < subsets.size(); ++state) {
    for (size_t c = 0; c < representatives.size(); ++c) {
      targets.clear();
      for (const uint32_t member : *subsets[state]) {
        const uint32_t set = nfa.set_of(member);
        if (set != Nfa::kNoSet && nfa.sets()[set][representatives[c]]) targets.push_back(nfa.target(member));
      }
      limits.work_left -= static_cast<int64_t>(subsets[state]->size());
      if (targets.empty()) continue;
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      const uint32_t next = id_of(targets);
      dfa.next_[state * dfa.num_classes_ + c] = next;
    }
    if (subsets.size() > limits.max_states || limits.work_left < 0) return Error(limits.TooLarge());
  }
  dfa.Minimize();
  dfa.Finish();
  return dfa;
}

template <typename Accepts>
Result<Dfa> Dfa::Product(const Dfa& a, const Dfa& b, DfaLimits& limits, const Accepts& accepts) {
  Classes classes = {};
  std::vector<uint8_t> representatives;
  std::map<std::pair<uint8_t, uint8_t>, uint8_t> class_of;
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto [found, is_new] = class_of.try_emplace({a.classes_[byte], b.classes_[byte]},
                                                      static_cast<uint8_t>(representatives.size()));
    if (is_new) representatives.push_back(static_cast<uint8_t>(byte));
    classes[byte] = found->second;
  }
  Dfa dfa(classes, representatives.size());
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto id_of = [&](uint32_t state_a, uint32_t state_b) {
    const uint64_t key = uint64_t{state_a} << 32 | state_b;
    const auto [found, is_new] = ids.try_emplace(key, static_cast<uint32_t>(pairs.size()));
    if (is_new) {
      pairs.emplace_back(state_a, state_b);
      dfa.AddState(accepts(a.IsAccepting(state_a), state_b != kDead && b.IsAccepting(state_b)));
    }
    return found->second;
  };
  if (a.IsEmpty()) return a;
  id_of(kStart, b.IsEmpty() ? kDead : kStart);
  for (uint32_t state = 0; state < pairs.size(); ++state) {
    for (size_t c = 0; c < representatives.size(); ++c) {
      const auto [state_a, state_b] = pairs[state];
      const uint32_t next_a = a.Next(state_a, representatives[c]);
      const uint32_t next_b = state_b == kDead ? kDead : b.Next(state_b, representatives[c]);
      // Once `a` is dead, neither product accepts any more.
      if (next_a != kDead) {
        const uint32_t next = id_of(next_a, next_b);
        dfa.next_[state * dfa.num_classes_ + c] = next;
      }
    }
    limits.work_left -= static_cast<int64_t>(4 * representatives.size());
    if (pairs.size() > 4 * limits.max_states || limits.work_left < 0) return Error(limits.TooLarge());
  }
  dfa.Finish();
  if (dfa.num_states() > limits.max_states) return Error(limits.TooLarge());
  return dfa;
}

Result<Dfa> Dfa::Intersect(const Dfa& a, const Dfa& b, DfaLimits& limits) {
  const auto both = [](bool in_a, bool in_b) { return in_a && in_b; };
  if (a.counts() && !b.counts()) return CountedProduct(a, b, false, limits);
  if (b.counts() && !a.counts()) return CountedProduct(b, a, false, limits);
  if (a.counts() && b.counts()) {
    constexpr uint64_t kFew = 2048;
    if (a.num_places() > b.num_places()) return Intersect(b, a, limits);
    if (a.num_places() <= kFew) return CountedProduct(b, a.Spread(), false, limits);
  }
  return Product(a, b, limits, both);
}

Result<Dfa> Dfa::Subtract(const Dfa& a, const Dfa& b, DfaLimits& limits) {
  const auto only_a = [](bool in_a, bool in_b) { return in_a && !in_b; };
  return a.counts() && !b.counts() ? CountedProduct(a, b, true, limits) : Product(a, b, limits, only_a);
}

Result<Dfa> Dfa::DecimalMultiples(uint32_t unit, int places, DfaLimits& limits) {
  // Classes: ten digits, the point, the sign, others. States: the start; behind the sign; then the remainder
  // by `unit` of the digits read. The whole part and each digit of the fraction up to `places` have such
  // states. Further digits are zeros.
  constexpr size_t kPoint = 10;
  constexpr size_t kSign = 11;
  constexpr size_t kOther = 12;
  const size_t num_states = 2 + size_t{unit} * (static_cast<size_t>(places) + 2);
  limits.work_left -= static_cast<int64_t>(num_states * (kOther + 1));
  if (num_states > limits.max_states || limits.work_left < 0) return Error(limits.TooLarge());
  Classes classes = {};
  classes.fill(kOther);
  for (uint8_t digit = 0; digit < 10; ++digit) classes['0' + digit] = digit;
  classes['.'] = kPoint;
  classes['-'] = kSign;
  Dfa dfa(classes, kOther + 1);
  std::vector<uint64_t> scale(static_cast<size_t>(places) + 1, 1);  // 10^i by `unit`.
  for (size_t i = 1; i < scale.size(); ++i) scale[i] = scale[i - 1] * 10 % unit;
  const auto id = [&](int level, uint64_t remainder) {
    return static_cast<uint32_t>(2 + static_cast<size_t>(level) * unit + remainder);
  };
  dfa.AddState(false);
  dfa.AddState(false);
  for (int level = 0; level <= places + 1; ++level) {
    // Level 0 is the whole part, level i + 1 has i digits of the fraction.
    const int read = std::max(0, level - 1);
    for (uint64_t remainder = 0; remainder < unit; ++remainder)
      dfa.AddState(remainder * scale[static_cast<size_t>(places - read)] % unit == 0);
  }
  const auto set = [&](uint32_t state, size_t byte_class, uint32_t next) {
    dfa.next_[state * dfa.num_classes_ + byte_class] = next;
  };
  set(kStart, kSign, 1);
  for (size_t digit = 0; digit < 10; ++digit) {
    set(kStart, digit, id(0, digit % unit));
    set(1, digit, id(0, digit % unit));
  }
  for (int level = 0; level <= places + 1; ++level) {
    for (uint64_t remainder = 0; remainder < unit; ++remainder) {
      const uint32_t state = id(level, remainder);
      if (level == 0) set(state, kPoint, id(1, remainder));
      for (size_t digit = 0; digit < 10; ++digit) {
        const uint64_t next = (remainder * 10 + digit) % unit;
        if (level <= places) set(state, digit, id(level == 0 ? 0 : level + 1, next));
        if (level == places + 1 && digit == 0) set(state, digit, state);
      }
    }
  }
  dfa.Finish();
  return dfa;
}

void Dfa::Minimize() {
  constexpr size_t kLarge = 512;
  const size_t count = num_states();
  if (count > kLarge) return;
  const Partition groups = SplitStates();
  // Numbered by their first states, so that the start stays the first.
  std::vector<uint32_t> new_id(groups.num_groups(), kDead);
  uint32_t num_new = 0;
  for (uint32_t state = 0; state < count; ++state) {
    if (uint32_t& id = new_id[groups.group_of(state)]; id == kDead) id = num_new++;
  }
  std::vector<uint32_t> next(num_new * num_classes_, kDead);
  std::vector<uint8_t> accepting(num_new);
  for (uint32_t state = 0; state < count; ++state) {
    const uint32_t id = new_id[groups.group_of(state)];
    accepting[id] = accepting_[state];
    for (size_t c = 0; c < num_classes_; ++c) {
      const uint32_t target = next_[state * num_classes_ + c];
      next[id * num_classes_ + c] = target == kDead ? kDead : new_id[groups.group_of(target)];
    }
  }
  next_ = std::move(next);
  accepting_ = std::move(accepting);
}

// Hopcroft's algorithm: whatever leads into a group splits the groups it comes from; of two halves the smaller one is enough to look at.
Partition Dfa::SplitStates() const {
  const auto count = static_cast<uint32_t>(num_states());
  const uint32_t dead = count;  // A state like the others here, and alone in its group.
  const auto next = [&](uint32_t state, size_t c) {
    return state == dead || next_[state * num_classes_ + c] == kDead ? dead : next_[state * num_classes_ + c];
  };
  // The states that lead to `state` by class `c`: sources[first[i]] to sources[first[i + 1]], i = c * (count + 1) + state.
  std::vector<uint32_t> first(num_classes_ * (count + 1) + 1);
  std::vector<uint32_t> sources(num_classes_ * (count + 1));
  for (size_t c = 0; c < num_classes_; ++c) {
    for (uint32_t state = 0; state <= count; ++state) ++first[c * (count + 1) + next(state, c) + 1];
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<uint32_t> filled(first.begin(), first.end() - 1);
  for (size_t c = 0; c < num_classes_; ++c) {
    for (uint32_t state = 0; state <= count; ++state)
      sources[filled[c * (count + 1) + next(state, c)]++] = state;
  }

  Partition groups(count + 1);
  std::vector<uint32_t> pending;  // Groups that may split others; each at most once.
  std::vector<uint8_t> is_pending(count + 1);
  const auto add = [&](uint32_t group) {
    if (is_pending[group] == 0) pending.push_back(group);
    is_pending[group] = 1;
  };
  const auto split_marked = [&] {
    groups.SplitMarked([&](uint32_t kept, uint32_t made) {
      add(is_pending[kept] != 0 || groups.size(made) < groups.size(kept) ? made : kept);
    });
  };
  groups.Mark(dead);
  split_marked();
  for (uint32_t state = 0; state < count; ++state) {
    if (accepting_[state] != 0) groups.Mark(state);
  }
  split_marked();
  for (uint32_t group = 0; group < groups.num_groups(); ++group) add(group);
  std::vector<uint32_t> members;
  while (!pending.empty()) {
    const uint32_t group = pending.back();
    pending.pop_back();
    is_pending[group] = 0;
    members.assign(groups.begin(group), groups.end(group));  // As it is now: it may split itself.
    for (size_t c = 0; c < num_classes_; ++c) {
      for (const uint32_t member : members) {
        const size_t i = c * (count + 1) + member;
        for (uint32_t at = first[i]; at < first[i + 1]; ++at) groups.Mark(sources[at]);
      }
      split_marked();
    }
  }
  return groups;
}

void Dfa::Finish() {
  // Backwards from the accepting states.
  const size_t count = num_states();
  std::vector<std::vector<uint32_t>> before(count);
  for (uint32_t state = 0; state < count; ++state) {
    for (size_t c = 0; c < num_classes_; ++c) {
      const uint32_t next = next_[state * num_classes_ + c];
      if (next != kDead) before[next].push_back(state);
    }
  }
  std::vector<uint8_t> useful = accepting_;
  std::vector<uint32_t> pending;
  for (uint32_t state = 0; state < count; ++state) {
    if (accepting_[state] != 0) pending.push_back(state);
  }
  while (!pending.empty()) {
    const uint32_t state = pending.back();
    pending.pop_back();
    for (const uint32_t previous : before[state]) {
      if (useful[previous] != 0) continue;
      useful[previous] = 1;
      pending.push_back(previous);
    }
  }
  std::vector<uint32_t> new_id(count, kDead);
  uint32_t num_useful = 0;
  // Without the start nothing is left, whatever else was useful.
  for (uint32_t state = 0; state < count && useful[kStart] != 0; ++state) {
    if (useful[state] != 0) new_id[state] = num_useful++;
  }
  std::vector<uint32_t> next(num_useful * num_classes_, kDead);
  std::vector<uint8_t> accepting(num_useful);
  goes_on_.assign(num_useful, 0);
  for (uint32_t state = 0; state < count; ++state) {
    if (new_id[state] == kDead) continue;
    accepting[new_id[state]] = accepting_[state];
    for (size_t c = 0; c < num_classes_; ++c) {
      const uint32_t target = next_[state * num_classes_ + c];
      if (target == kDead || new_id[target] == kDead) continue;
      next[new_id[state] * num_classes_ + c] = new_id[target];
      goes_on_[new_id[state]] = 1;
    }
  }
  next_ = std::move(next);
  accepting_ = std::move(accepting);
  Fingerprint128();
}

void Dfa::Fingerprint128() {
  const XXH128_hash_t tables = XXH3_128bits(next_.data(), next_.size() * sizeof(uint32_t));
  const uint64_t rest = XXH3_64bits_withSeed(accepting_.data(), accepting_.size(),
                                             XXH3_64bits(classes_.data(), classes_.size()));
  const uint64_t blocks = XXH3_64bits_withSeed(blocks_.data(), blocks_.size() * sizeof(Block),
                                               XXH3_64bits(relative_.data(), relative_.size()));
  const uint64_t all = blocks_.empty() ? rest : rest ^ blocks;
  fingerprint_ = {tables.low64 ^ all, tables.high64 + all};
}

}  // namespace dsv4::grammar
