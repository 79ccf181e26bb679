// Threads through a program: tokens accepted, masks of the next token in pieces, and forced bytes.
#include "grammar/matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace dsv4::grammar {
namespace {

constexpr size_t kMaxFrames = 1 << 14;
constexpr size_t kMaxForcedBytes = 1024;
// Nodes between terminals that one byte may lead to.
constexpr size_t kMaxEntered = 1 << 17;

uint64_t Pair(uint32_t high, uint32_t low) { return (uint64_t{high} << 32) | low; }

}  // namespace

void Matcher::Seen::Clear() {
  count_ = 0;
  if (++now_ != 0) return;
  stamps_.assign(stamps_.size(), 0);
  now_ = 1;
}

bool Matcher::Seen::Insert(uint32_t node, uint32_t frame) {
  if (2 * count_ >= keys_.size()) Grow();
  const uint64_t key = Pair(node, frame);
  const size_t mask = keys_.size() - 1;
  for (size_t slot = (key * 0x9E3779B97F4A7C15ULL) >> 20 & mask;; slot = (slot + 1) & mask) {
    if (stamps_[slot] != now_) {
      stamps_[slot] = now_;
      keys_[slot] = key;
      ++count_;
      return true;
    }
    if (keys_[slot] == key) return false;
  }
}

void Matcher::Seen::Grow() {
  std::vector<uint64_t> old;
  for (size_t slot = 0; slot < keys_.size(); ++slot) {
    if (stamps_[slot] == now_) old.push_back(keys_[slot]);
  }
  keys_.assign(2 * keys_.size(), 0);
  stamps_.assign(keys_.size(), 0);
  now_ = 1;
  count_ = 0;
  for (const uint64_t key : old) Insert(static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key));
}

Matcher::Matcher(std::shared_ptr<const Program> grammar, std::shared_ptr<const TokenTrie> trie,
                 std::vector<TokenId> stop_ids)
    : grammar_(std::move(grammar)), trie_(std::move(trie)), stop_ids_(std::move(stop_ids)) {
  frames_.push_back({.node = 0, .parent = 0, .depth = 0});
  seen_.Clear();
  Enter(grammar_->start, 0, active_);
  std::sort(active_.threads.begin(), active_.threads.end());
}

uint32_t Matcher::Push(uint32_t node, uint32_t frame, uint32_t count) {
  const Frame pushed = {.node = node, .parent = frame, .depth = frames_[frame].depth + 1, .count = count};
  const auto [found, is_new] = frame_ids_.try_emplace(pushed, static_cast<uint32_t>(frames_.size()));
  if (is_new) frames_.push_back(pushed);
  return found->second;
}

void Matcher::Enter(uint32_t node, uint32_t frame, ActiveSet& out) {
  pending_.clear();
  pending_.emplace_back(node, frame);
  while (!pending_.empty()) {
    const auto [at, stack] = pending_.back();
    pending_.pop_back();
    const Node& here = grammar_->nodes[at];
    // A way that cannot be walked to its end is none.
    if (here.need == kNever || frames_[stack].depth + here.need > grammar_->max_depth) continue;
    if (!seen_.Insert(at, stack)) continue;
    if (seen_.count() > kMaxEntered) {
      overflowed_ = true;
      break;
    }
    switch (here.kind) {
      case Node::Kind::kTerminal:
        if (out.threads.size() >= kMaxThreads) {
          overflowed_ = true;
          break;
        }
        out.threads.push_back({.dfa = here.what, .state = Dfa::kStart, .next = here.next, .frame = stack});
        if (grammar_->may_end_inside[here.what] != 0) out.complete = true;
        if (grammar_->dfas[here.what].IsAccepting(Dfa::kStart)) pending_.emplace_back(here.next, stack);
        break;
      case Node::Kind::kCall:
        if (grammar_->nodes[here.next].kind == Node::Kind::kReturn) {
          pending_.emplace_back(here.what, stack);
        } else {
          pending_.emplace_back(here.what, Push(here.next, stack));
        }
        break;
      case Node::Kind::kSplit:
        for (const uint32_t option : here.options) pending_.emplace_back(option, stack);
        break;
      case Node::Kind::kReturn:
        if (stack == 0) {
          out.complete = true;
        } else if (const Frame from = frames_[stack]; from.count == 0) {
          pending_.emplace_back(from.node, from.parent);
        } else {
          const Node& repeat = grammar_->nodes[from.node];
          if (from.count >= repeat.min) pending_.emplace_back(repeat.next, from.parent);
          if (repeat.max == Node::kEndless)  // From `min` on turns are alike.
            pending_.emplace_back(repeat.what, Push(from.node, from.parent,
                                                    std::min(from.count + 1, std::max(repeat.min, 1U))));
          else if (from.count < repeat.max)
            pending_.emplace_back(repeat.what, Push(from.node, from.parent, from.count + 1));
        }
        break;
      case Node::Kind::kRepeat:
        if (here.min == 0) pending_.emplace_back(here.next, stack);
        pending_.emplace_back(here.what, Push(at, stack, 1));
        break;
    }
  }
}

void Matcher::Step(const ActiveSet& in, uint8_t byte, ActiveSet& out) {
  out.Clear();
  seen_.Clear();
  for (const Thread& thread : in.threads) {
    const Dfa& dfa = grammar_->dfas[thread.dfa];
    const uint32_t next = dfa.Next(thread.state, byte);
    if (next == Dfa::kDead) continue;
    const bool has_room = out.threads.size() < kMaxThreads;
    if (dfa.GoesOn(next) && !has_room) overflowed_ = true;
    if (dfa.GoesOn(next) && has_room) {
      out.threads.push_back({.dfa = thread.dfa, .state = next, .next = thread.next, .frame = thread.frame});
      if (grammar_->may_end_inside[thread.dfa] != 0) out.complete = true;
    }
    if (dfa.IsAccepting(next)) Enter(thread.next, thread.frame, out);
  }
  steps_left_ -= static_cast<int64_t>(in.threads.size() + out.threads.size() + seen_.count());
  std::sort(out.threads.begin(), out.threads.end());
  out.threads.erase(std::unique(out.threads.begin(), out.threads.end()), out.threads.end());
}

bool Matcher::IsLate(TimePoint deadline) {
  constexpr int64_t kStepsBetweenLooks = 4096;
  if (deadline == TimePoint::max() || progress_.looked_at - steps_left_ < kStepsBetweenLooks) return false;
  progress_.looked_at = steps_left_;
  return std::chrono::steady_clock::now() >= deadline;
}

bool Matcher::MaskBelow(uint32_t exit, TokenMask& mask, TimePoint deadline) {
  const std::span<const TokenTrie::Node> nodes = trie_->nodes();
  const uint32_t top = nodes[exit].depth;
  uint32_t& node = progress_.node;
  if (node == 0) node = exit + 1;
  while (node < nodes[exit].subtree_end && steps_left_ > 0) {
    const TokenTrie::Node& at = nodes[node];
    const size_t depth = at.depth - top;
    if (sets_.size() <= depth) sets_.resize(depth + 1);
    Step(depth == 1 ? progress_.after : sets_[depth - 1], at.byte, sets_[depth]);
    const ActiveSet& set = sets_[depth];
    if (!set.threads.empty() || set.complete) {
      for (const TokenId id : trie_->TokensOf(node)) mask.Allow(id);
    }
    node = set.threads.empty() ? at.subtree_end : node + 1;
    if (IsLate(deadline)) return false;
  }
  node = 0;
  return true;
}

bool Matcher::MaskGroup(TokenMask& mask, TimePoint deadline) {
  const std::vector<Thread>& threads = active_.threads;
  Progress& at = progress_;
  if (at.fit == nullptr) {
    at.end = at.begin;
    while (at.end < threads.size() && threads[at.end].dfa == threads[at.begin].dfa &&
           threads[at.end].state == threads[at.begin].state) {
      ++at.end;
    }
    at.fit = trie_->FitOf(grammar_->dfas[threads[at.begin].dfa], threads[at.begin].state);
    at.exit = 0;
    for (const TokenId id : at.fit->few) mask.Allow(id);
    for (size_t word = 0; word < at.fit->many.size(); ++word) mask.words()[word] |= at.fit->many[word];
    at.after.Clear();
    if (!at.fit->exits.empty()) {
      seen_.Clear();
      for (size_t i = at.begin; i < at.end; ++i) Enter(threads[i].next, threads[i].frame, at.after);
      std::sort(at.after.threads.begin(), at.after.threads.end());
    }
    if (at.after.threads.empty()) at.exit = at.fit->exits.size();
    // A walk for the fit may have taken long.
    at.looked_at = std::numeric_limits<int64_t>::max() / 2;
  }
  if (IsLate(deadline)) return false;
  for (; at.exit < at.fit->exits.size(); ++at.exit) {
    if (!MaskBelow(at.fit->exits[at.exit], mask, deadline)) return false;
  }
  at.fit = nullptr;
  at.begin = at.end;
  return true;
}

void Matcher::Mask(TokenMask& mask) {
  progress_ = {};
  MaskUntil(mask, TimePoint::max());
}

bool Matcher::MaskUntil(TokenMask& mask, TimePoint deadline) {
  DSV4_CHECK(mask.num_ids() >= trie_->num_ids())
      << mask.num_ids() << " ids, the tokenizer has " << trie_->num_ids();
  if (progress_.done) return true;
  if (!progress_.begun) {
    mask.Clear();
    steps_left_ = kMaxSteps;
    progress_.begun = true;
  }
  while (!finished_ && progress_.begin < active_.threads.size()) {
    if (!MaskGroup(mask, deadline)) return false;
  }
  progress_.done = true;
  if (finished_) return true;
  if (active_.complete) {
    for (const TokenId id : stop_ids_) mask.Allow(id);
  } else {
    ForbidStops(mask);
  }
  DropFrames();
  return true;
}

// A stop id may be a token of text too, or any marker. Where it alone could come next the text has to end at
// it.
void Matcher::ForbidStops(TokenMask& mask) const {
  std::vector<TokenId> forbidden;
  for (const TokenId id : stop_ids_) {
    if (!mask.IsAllowed(id)) continue;
    mask.Forbid(id);
    forbidden.push_back(id);
  }
  if (forbidden.empty() || mask.Count() > 0) return;
  for (const TokenId id : forbidden) mask.Allow(id);
}

Status Matcher::Accept(TokenId id) {
  if (finished_) return InvalidArgument(fmt::format("token {} after the end of the text", id));
  if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) {
    if (!active_.complete)
      return InvalidArgument(fmt::format("token {} ends a text that is not complete", id));
    finished_ = true;
    active_.threads.clear();
    progress_ = {};
    return {};
  }
  const std::span<const uint8_t> bytes = trie_->BytesOf(id);
  if (bytes.empty()) return InvalidArgument(fmt::format("token {} is not text", id));
  return AcceptBytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()})
      .WithContext(fmt::format("token {}", id));
}

bool Matcher::Advance(ActiveSet& set, std::string_view bytes, size_t* reached) {
  ActiveSet next;
  for (size_t i = 0; i < bytes.size(); ++i) {
    *reached = i;
    Step(set, static_cast<uint8_t>(bytes[i]), next);
    if (next.threads.empty() && (!next.complete || i + 1 < bytes.size())) return false;
    std::swap(set, next);
  }
  return true;
}

Status Matcher::AcceptBytes(std::string_view bytes) {
  ActiveSet set = active_;
  size_t reached = 0;
  overflowed_ = false;
  bool taken = Advance(set, bytes, &reached);
  // A mask looks at readings in smaller groups: one that had no room among all has it alone.
  for (size_t i = 0; !taken && overflowed_ && i < active_.threads.size(); ++i) {
    set = {.threads = {active_.threads[i]}};
    size_t alone = 0;
    taken = Advance(set, bytes, &alone);
    overflowed_ = true;
  }
  if (!taken) return InvalidArgument(fmt::format("the grammar does not allow byte {} of it here", reached));
  progress_ = {};
  active_ = std::move(set);
  DropFrames();
  return {};
}

std::string Matcher::ForcedBytes() {
  std::string forced;
  ActiveSet set = active_;
  ActiveSet next;
  while (!set.complete && forced.size() < kMaxForcedBytes) {
    int only = -1;
    for (int byte = 0; byte < 256; ++byte) {
      const bool possible = std::any_of(set.threads.begin(), set.threads.end(), [&](const Thread& thread) {
        return grammar_->dfas[thread.dfa].Next(thread.state, static_cast<uint8_t>(byte)) != Dfa::kDead;
      });
      if (!possible) continue;
      if (only >= 0) return forced;
      only = byte;
    }
    if (only < 0) return forced;
    forced.push_back(static_cast<char>(only));
    Step(set, static_cast<uint8_t>(only), next);
    std::swap(set, next);
  }
  return forced;
}

std::vector<TokenId> Matcher::ForcedTokens(size_t most) {
  std::vector<TokenId> tokens;
  if (finished_ || most == 0) return tokens;
  const std::string forced = ForcedBytes();
  std::string_view rest = forced;
  while (!rest.empty() && tokens.size() < most) {
    const TokenId id = trie_->LongestPrefix(rest);
    if (id < 0) break;
    tokens.push_back(id);
    rest.remove_prefix(trie_->BytesOf(id).size());
  }
  return tokens;
}

size_t Matcher::CountAllowed(std::span<const TokenId> tokens) const {
  Matcher ahead = *this;
  size_t count = 0;
  while (count < tokens.size() && ahead.Accept(tokens[count]).ok()) ++count;
  return count;
}

void Matcher::DropFrames() {
  if (frames_.size() <= kMaxFrames) return;
  const std::vector<Frame> old = std::move(frames_);
  frames_ = {old[0]};
  frame_ids_.clear();
  std::vector<uint32_t> path;
  for (Thread& thread : active_.threads) {
    path.clear();
    for (uint32_t frame = thread.frame; frame != 0; frame = old[frame].parent) path.push_back(frame);
    thread.frame = 0;
    for (auto frame = path.rbegin(); frame != path.rend(); ++frame)
      thread.frame = Push(old[*frame].node, thread.frame, old[*frame].count);
  }
  std::sort(active_.threads.begin(), active_.threads.end());
}

}  // namespace dsv4::grammar
