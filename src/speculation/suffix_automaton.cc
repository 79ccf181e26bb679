// Online suffix automaton over tokens with hashed edges.
#include "speculation/suffix_automaton.h"

namespace dsv4::speculation {
namespace {

// States on the way to the root that learn of a new end. The longest come first and are those that are asked
// for.
constexpr int kMostRefreshed = 32;

constexpr size_t kFirstSlots = 256;

}  // namespace

SuffixAutomaton::SuffixAutomaton() : slots_(kFirstSlots, -1) { NewState(0, -1, 0); }

int32_t SuffixAutomaton::NewState(int32_t length, int32_t link, int32_t end) {
  states_.push_back({.length = length, .link = link, .end = end, .last_edge = -1});
  return static_cast<int32_t>(states_.size()) - 1;
}

size_t SuffixAutomaton::SlotOf(int32_t state, int32_t token) const {
  uint64_t hash = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebULL;
  const size_t mask = slots_.size() - 1;
  size_t slot = (hash ^ hash >> 31) & mask;
  while (slots_[slot] >= 0) {
    const Edge& edge = edges_[static_cast<size_t>(slots_[slot])];
    if (edge.state == state && edge.token == token) break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

int32_t SuffixAutomaton::FindEdge(int32_t state, int32_t token) const { return slots_[SlotOf(state, token)]; }

void SuffixAutomaton::GrowSlots() {
  slots_.assign(slots_.size() * 2, -1);
  for (size_t i = 0; i < edges_.size(); ++i)
    slots_[SlotOf(edges_[i].state, edges_[i].token)] = static_cast<int32_t>(i);
}

void SuffixAutomaton::AddEdge(int32_t state, int32_t token, int32_t target) {
  if (2 * (edges_.size() + 1) > slots_.size()) GrowSlots();
  const auto number = static_cast<int32_t>(edges_.size());
  slots_[SlotOf(state, token)] = number;
  State& from = states_[static_cast<size_t>(state)];
  edges_.push_back({.state = state, .token = token, .target = target, .previous = from.last_edge});
  from.last_edge = number;
}

void SuffixAutomaton::Append(int32_t token) {
  text_.push_back(token);
  const auto end = static_cast<int32_t>(text_.size());
  const int32_t whole = NewState(end, 0, end);
  int32_t p = last_;
  int32_t edge = -1;
  for (; p >= 0; p = states_[static_cast<size_t>(p)].link) {
    edge = FindEdge(p, token);
    if (edge >= 0) break;
    AddEdge(p, token, whole);
  }
  last_ = whole;
  if (p < 0) {
    repeat_ = {};
    return;
  }
  const int32_t q = edges_[static_cast<size_t>(edge)].target;
  int32_t link = q;
  const int32_t length = states_[static_cast<size_t>(p)].length + 1;
  if (length != states_[static_cast<size_t>(q)].length) {
    // Its shorter substrings now have an end that its longer ones lack.
    const State of_q = states_[static_cast<size_t>(q)];
    link = NewState(length, of_q.link, of_q.end);
    for (int32_t i = of_q.last_edge; i >= 0; i = edges_[static_cast<size_t>(i)].previous) {
      const Edge copied = edges_[static_cast<size_t>(i)];
      AddEdge(link, copied.token, copied.target);
    }
    for (; p >= 0; p = states_[static_cast<size_t>(p)].link) {
      edge = FindEdge(p, token);
      if (edge < 0 || edges_[static_cast<size_t>(edge)].target != q) break;
      edges_[static_cast<size_t>(edge)].target = link;
    }
    states_[static_cast<size_t>(q)].link = link;
  }
  states_[static_cast<size_t>(whole)].link = link;
  repeat_ = {.length = length, .end = states_[static_cast<size_t>(link)].end};
  for (int i = 0; i < kMostRefreshed && link > 0; ++i) {
    states_[static_cast<size_t>(link)].end = end;
    link = states_[static_cast<size_t>(link)].link;
  }
}

}  // namespace dsv4::speculation
