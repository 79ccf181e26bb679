// Automata that count: made, and intersected with others.
#include <algorithm>
#include <map>
#include <tuple>

#include "grammar/dfa.h"

namespace dsv4::grammar {
namespace {

constexpr uint32_t kMostStates = uint32_t{1} << 31;
// So many repetitions no answer has; that bound is left out where it would not go.
constexpr int kEndless = 1 << 24;

}  // namespace

const Dfa::Block& Dfa::BlockOf(uint32_t state) const {
  const auto behind = std::upper_bound(blocks_.begin(), blocks_.end(), state,
                                       [](uint32_t at, const Block& block) { return at < block.first; });
  return *(behind - 1);
}

uint32_t Dfa::Alike(uint32_t state) const {
  if (blocks_.empty()) return state;
  const Block& block = BlockOf(state);
  const uint32_t offset = state - block.first;
  // A short text ends before the last copy.
  const bool far = block.copies - offset / block.width > kAlikeBytes;
  return far ? block.first + offset % block.width : state;
}

std::optional<Result<Dfa>> Dfa::CompileCounted(const Regex& regex, DfaLimits& limits) {
  const std::vector<Regex> parts = SequenceOf(regex);
  const auto is_large = [](const Regex& part) { return IsLarge(*part); };
  const auto found = std::find_if(parts.begin(), parts.end(), is_large);
  if (found == parts.end() || std::any_of(found + 1, parts.end(), is_large)) return std::nullopt;
  const Regex repeat = *found;
  const Result<Dfa> unit = CompileStates(repeat->parts[0], limits);
  const Result<Dfa> before = CompileStates(Concat({parts.begin(), found}), limits);
  const Result<Dfa> behind = CompileStates(Concat({found + 1, parts.end()}), limits);
  if (!unit || !before || !behind) return std::nullopt;
  if (auto dfa = Counted(*before, *unit, *behind, repeat->min, repeat->max, limits)) return dfa;
  return CompileSized(parts, limits);
}

// Between bytes that are not of characters, as quotes are.
std::optional<Result<Dfa>> Dfa::CompileSized(const std::vector<Regex>& parts, DfaLimits& limits) {
  const auto has_length = [](const Regex& part) { return LengthsOf(*part).has_value(); };
  const auto first = std::find_if(parts.begin(), parts.end(), has_length);
  const auto last = std::find_if(parts.rbegin(), parts.rend(), has_length).base();
  if (first >= last) return std::nullopt;
  const std::optional<SizedText> sized = AsSizedText({first, last});
  if (!sized) return std::nullopt;
  const Result<Dfa> before = CompileStates(Concat({parts.begin(), first}), limits);
  const Result<Dfa> behind = CompileStates(Concat({last, parts.end()}), limits);
  const Result<Dfa> character = CompileStates(Either(CharactersOf(*sized->endless)), limits);
  const Result<Dfa> endless = CompileStates(
      Concat({Concat({parts.begin(), first}), sized->endless, Concat({last, parts.end()})}), limits);
  if (!before || !behind || !character || !endless) return std::nullopt;
  const auto counted = Counted(*before, *character, *behind, sized->lengths.min, sized->lengths.max, limits);
  if (!counted) return std::nullopt;
  return *counted ? Intersect(**counted, *endless, limits) : *counted;
}

Dfa Dfa::Spread() const {
  Dfa dfa(classes_, num_classes_);
  for (const Block& block : blocks_) {
    for (uint32_t state = block.first; state < block.first + block.width * block.copies; ++state) {
      const size_t row = dfa.AddState(IsAccepting(state));
      for (size_t c = 0; c < num_classes_; ++c) dfa.next_[row * num_classes_ + c] = Target(state, c);
    }
  }
  dfa.Finish();
  return dfa;
}

std::optional<Result<Dfa>> Dfa::Counted(const Dfa& before, const Dfa& unit, const Dfa& behind, int min,
                                        int max, DfaLimits& limits) {
  if (before.counts() || unit.counts() || behind.counts()) return std::nullopt;
  if (before.IsEmpty() || unit.IsEmpty() || behind.IsEmpty()) return std::nullopt;
  const auto ends_clearly = [](const Dfa& dfa) {
    for (uint32_t state = 0; state < dfa.num_states(); ++state) {
      if (dfa.IsAccepting(state) && dfa.GoesOn(state)) return false;
    }
    return true;
  };
  if (!ends_clearly(before) || !ends_clearly(unit) || unit.IsAccepting(kStart)) return std::nullopt;
  // The start of a unit is nowhere within one.
  if (std::find(unit.next_.begin(), unit.next_.end(), kStart) != unit.next_.end()) return std::nullopt;
  for (int byte = 0; byte < 256; ++byte) {
    const auto b = static_cast<uint8_t>(byte);
    if (unit.Next(kStart, b) != kDead && behind.Next(kStart, b) != kDead) return std::nullopt;
  }
  const auto width = static_cast<uint32_t>(unit.num_states());
  if (max >= kEndless && kMostStates / width <= static_cast<uint32_t>(max)) max = kUnbounded;
  const auto levels = static_cast<uint64_t>(max == kUnbounded ? min : max) + 1;
  const size_t rows = before.num_states() + 3 * size_t{width} + behind.num_states();
  limits.work_left -= static_cast<int64_t>(rows * 256);
  if (levels * width >= kMostStates || rows > limits.max_states || limits.work_left < 0)
    return Result<Dfa>(Error(limits.TooLarge()));

  Classes classes = {};
  std::vector<uint8_t> bytes;  // By class, one of it.
  std::map<std::tuple<uint8_t, uint8_t, uint8_t>, uint8_t> known;
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto [found, is_new] =
        known.try_emplace({before.classes_[byte], unit.classes_[byte], behind.classes_[byte]},
                          static_cast<uint8_t>(bytes.size()));
    if (is_new) bytes.push_back(static_cast<uint8_t>(byte));
    classes[byte] = found->second;
  }
  Dfa dfa(classes, bytes.size());
  uint32_t num_states = 0;
  const auto add_block = [&](uint32_t block_width, uint32_t copies) {
    dfa.blocks_.push_back({num_states, block_width, copies, static_cast<uint32_t>(dfa.num_states())});
    num_states += block_width * copies;
    for (uint32_t i = 0; i < block_width; ++i) dfa.AddState(false);
    dfa.relative_.resize(dfa.next_.size());
    return dfa.blocks_.back();
  };
  const auto set = [&](size_t row, size_t byte_class, uint32_t next, bool relative) {
    dfa.next_[row * dfa.num_classes_ + byte_class] = relative ? next ^ kDistance : next;
    dfa.relative_[row * dfa.num_classes_ + byte_class] = relative ? 1 : 0;
  };
  const bool has_before = !before.IsAccepting(kStart);
  const auto num_before = static_cast<uint32_t>(has_before ? before.num_states() : 0);
  if (has_before) {
    add_block(num_before, 1);
    for (uint32_t state = 0; state < num_before; ++state) {
      for (size_t c = 0; c < bytes.size(); ++c) {
        const uint32_t next = before.Next(state, bytes[c]);
        if (next != kDead) set(state, c, before.IsAccepting(next) ? num_before : next, false);
      }
    }
  }
  const auto first_behind = static_cast<uint32_t>(num_before + levels * width);
  // The copies of a level: `may_end`: enough have come; `loops`: more of them do not count.
  const auto add_levels = [&](uint32_t copies, bool goes_on, bool may_end, bool loops) {
    if (copies == 0) return;
    const Block block = add_block(width, copies);
    for (uint32_t state = 0; state < width; ++state) {
      for (size_t c = 0; c < bytes.size(); ++c) {
        const uint32_t next = goes_on ? unit.Next(state, bytes[c]) : kDead;
        const uint32_t end = may_end && state == kStart ? behind.Next(kStart, bytes[c]) : kDead;
        if (next != kDead)
          set(block.first_row + state, c, unit.IsAccepting(next) ? (loops ? 0 : width) - state : next - state,
              true);
        if (end != kDead) set(block.first_row + state, c, first_behind + end, false);
      }
    }
    if (may_end && behind.IsAccepting(kStart)) dfa.accepting_[block.first_row] = 1;
  };
  add_levels(static_cast<uint32_t>(min), true, false, false);
  if (max != kUnbounded) add_levels(static_cast<uint32_t>(max - min), true, true, false);
  add_levels(1, max == kUnbounded, true, max == kUnbounded);
  const Block last = add_block(static_cast<uint32_t>(behind.num_states()), 1);
  for (uint32_t state = 0; state < last.width; ++state) {
    dfa.accepting_[last.first_row + state] = behind.IsAccepting(state) ? 1 : 0;
    for (size_t c = 0; c < bytes.size(); ++c) {
      const uint32_t next = behind.Next(state, bytes[c]);
      if (next != kDead) set(last.first_row + state, c, first_behind + next, false);
    }
  }
  for (size_t row = 0; row < dfa.num_states(); ++row) {
    const auto begin = dfa.next_.begin() + static_cast<std::ptrdiff_t>(row * dfa.num_classes_);
    dfa.goes_on_.push_back(std::any_of(begin, begin + static_cast<std::ptrdiff_t>(dfa.num_classes_),
                                       [](uint32_t next) { return next != kDead; }));
  }
  dfa.Fingerprint128();
  return Result<Dfa>(std::move(dfa));
}

bool Dfa::LeadsOn(const Block& block) const {
  for (uint32_t inner = 0; inner < block.width; ++inner) {
    for (size_t c = 0; c < num_classes_; ++c) {
      const size_t at = (block.first_row + inner) * num_classes_ + c;
      if (next_[at] != kDead && relative_[at] != 0 && inner + Distance(at) >= block.width) return true;
    }
  }
  return false;
}

// A pair is a state within a copy of a block and a state of the plain automaton, as far as any count leads
// there. Blocks that lead on to one another have the same pairs. From the last copy to the first it is found
// out where a text can still be ended. A copy that is like the next one of its block is like all copies in
// front, and their rows are one.
Result<Dfa> Dfa::CountedProduct(const Dfa& counted, const Dfa& plain, bool subtract, DfaLimits& limits) {
  Classes classes = {};
  std::vector<uint8_t> bytes;
  std::map<std::pair<uint8_t, uint8_t>, uint8_t> known;
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto [found, is_new] =
        known.try_emplace({counted.classes_[byte], plain.classes_[byte]}, static_cast<uint8_t>(bytes.size()));
    if (is_new) bytes.push_back(static_cast<uint8_t>(byte));
    classes[byte] = found->second;
  }
  const std::vector<Block>& blocks = counted.blocks_;
  std::vector<size_t> chain(blocks.size());  // By block, the first of those that lead on to it.
  for (size_t i = 0; i < blocks.size(); ++i)
    chain[i] = i > 0 && counted.LeadsOn(blocks[i - 1]) ? chain[i - 1] : i;
  struct PairState {
    uint32_t inner;  // Within a copy.
    uint32_t other;  // kDead: the plain automaton has no such text.
    auto operator<=>(const PairState&) const = default;
  };
  struct Way {
    enum class To : uint8_t { kNowhere, kHere, kNextCopy, kBlock } to = To::kNowhere;
    size_t block = 0;
    uint32_t id = 0;  // The pair there.
  };
  std::vector<std::map<PairState, uint32_t>> ids(blocks.size());  // By chain.
  std::vector<std::vector<PairState>> pairs(blocks.size());
  std::vector<std::pair<size_t, uint32_t>> pending;  // Chain, and the pair's id.
  const auto id_of = [&](size_t block, PairState pair) {
    const size_t at = chain[block];
    const auto [found, is_new] = ids[at].try_emplace(pair, static_cast<uint32_t>(pairs[at].size()));
    if (is_new) {
      pairs[at].push_back(pair);
      pending.emplace_back(at, found->second);
    }
    return found->second;
  };
  const auto way = [&](size_t block, const PairState& pair, uint8_t byte) -> Way {
    const Block& here = blocks[block];
    const size_t at = (here.first_row + pair.inner) * counted.num_classes_ + counted.classes_[byte];
    const uint32_t next = counted.next_[at];
    const uint32_t other = pair.other == kDead ? kDead : plain.Next(pair.other, byte);
    if (next == kDead || (other == kDead && !subtract)) return {};
    if (counted.relative_[at] != 0) {
      const uint32_t to = pair.inner + counted.Distance(at);
      if (to < here.width) return {Way::To::kHere, block, id_of(block, {to, other})};
      return {Way::To::kNextCopy, block, id_of(block, {to - here.width, other})};
    }
    const Block& there = counted.BlockOf(next);
    const auto target = static_cast<size_t>(&there - blocks.data());
    return {target == block ? Way::To::kHere : Way::To::kBlock, target,
            id_of(target, {next - there.first, other})};
  };
  id_of(0, {kStart, plain.IsEmpty() ? kDead : kStart});
  for (size_t i = 0; i < pending.size(); ++i) {
    const auto [from, id] = pending[i];
    const PairState pair = pairs[from][id];
    for (size_t block = from; block < blocks.size() && chain[block] == from; ++block) {
      for (const uint8_t byte : bytes) way(block, pair, byte);
      limits.work_left -= static_cast<int64_t>(4 * bytes.size());
    }
    if (pending.size() > limits.max_states || limits.work_left < 0) return Error(limits.TooLarge());
  }

  Dfa dfa(classes, bytes.size());
  std::vector<uint32_t> first(blocks.size());  // By block, in the product.
  uint64_t num_states = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    first[i] = static_cast<uint32_t>(num_states);
    num_states += uint64_t{pairs[chain[i]].size()} * blocks[i].copies;
    if (num_states >= kMostStates) return Error(limits.TooLarge());
  }
  using Live = std::vector<uint8_t>;            // By pair.
  std::vector<Live> first_live(blocks.size());  // By block: its first copy.
  std::vector<Block> made;                      // From the last to the first.
  Live behind;                                  // The copy behind the one at hand.
  std::vector<Way> ways;
  for (size_t block = blocks.size(); block-- > 0;) {
    const std::vector<PairState>& here = pairs[chain[block]];
    const auto width = static_cast<uint32_t>(here.size());
    if (width == 0) continue;
    const bool leads_on = block + 1 < blocks.size() && chain[block + 1] == chain[block];
    if (!leads_on) behind.assign(width, 0);
    ways.clear();
    for (const PairState& pair : here) {
      for (const uint8_t byte : bytes) ways.push_back(way(block, pair, byte));
    }
    const auto lives = [&](const Way& to, const Live& live) {
      return (to.to == Way::To::kHere && live[to.id] != 0) ||
             (to.to == Way::To::kNextCopy && behind[to.id] != 0) ||
             (to.to == Way::To::kBlock && first_live[to.block][to.id] != 0);
    };
    Live accepting(width);
    for (uint32_t i = 0; i < width; ++i) {
      const bool there = here[i].other != kDead && plain.IsAccepting(here[i].other);
      accepting[i] = counted.accepting_[blocks[block].first_row + here[i].inner] != 0 && there != subtract;
    }
    for (uint32_t copy = blocks[block].copies; copy-- > 0;) {
      Live live = accepting;
      for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = width; i-- > 0;) {
          if (live[i] != 0) continue;
          const auto begin = ways.begin() + static_cast<std::ptrdiff_t>(i * bytes.size());
          const bool is_live = std::any_of(begin, begin + static_cast<std::ptrdiff_t>(bytes.size()),
                                           [&](const Way& to) { return lives(to, live); });
          live[i] = is_live ? 1 : 0;
          changed = changed || is_live;
        }
        limits.work_left -= static_cast<int64_t>(width * bytes.size());
        if (limits.work_left < 0) return Error(limits.TooLarge());
      }
      const bool settled = copy + 1 < blocks[block].copies && live == behind;
      made.push_back({first[block] + (settled ? 0 : copy) * width, width, settled ? copy + 1 : 1,
                      static_cast<uint32_t>(dfa.num_states())});
      for (uint32_t i = 0; i < width; ++i) {
        const size_t row = dfa.AddState(live[i] != 0 && accepting[i] != 0);
        dfa.relative_.resize(dfa.next_.size());
        dfa.goes_on_.push_back(0);
        for (size_t c = 0; c < bytes.size() && live[i] != 0; ++c) {
          const Way& to = ways[i * bytes.size() + c];
          if (!lives(to, live)) continue;
          const bool relative = to.to != Way::To::kBlock;
          dfa.next_[row * dfa.num_classes_ + c] =
              relative ? ((to.to == Way::To::kNextCopy ? width : 0) + to.id - i) ^ kDistance
                       : first[to.block] + to.id;
          dfa.relative_[row * dfa.num_classes_ + c] = relative ? 1 : 0;
          dfa.goes_on_.back() = 1;
        }
      }
      if (dfa.num_states() > limits.max_states) return Error(limits.TooLarge());
      behind = std::move(live);
      if (settled) break;
    }
    first_live[block] = behind;
  }
  if (first_live[0][0] == 0) return Dfa();
  dfa.blocks_.assign(made.rbegin(), made.rend());
  dfa.Fingerprint128();
  return dfa;
}

}  // namespace dsv4::grammar
