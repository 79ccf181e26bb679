// Builder of pushdown programs: nodes, terminals, size limits, loops and least depths to return.
#include "grammar/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace dsv4::grammar {

uint32_t ProgramBuilder::Add(Node node) {
  program_.nodes.push_back(std::move(node));
  return static_cast<uint32_t>(program_.nodes.size() - 1);
}

uint32_t ProgramBuilder::Terminal(uint32_t dfa, uint32_t next) {
  return Add({.kind = Node::Kind::kTerminal, .what = dfa, .next = next, .options = {}});
}

uint32_t ProgramBuilder::Call(uint32_t entry, uint32_t next) {
  return Add({.kind = Node::Kind::kCall, .what = entry, .next = next, .options = {}});
}

uint32_t ProgramBuilder::Split(std::vector<uint32_t> options) {
  return Add({.kind = Node::Kind::kSplit, .options = std::move(options)});
}

uint32_t ProgramBuilder::Return() { return Add({.kind = Node::Kind::kReturn, .options = {}}); }

uint32_t ProgramBuilder::Repeat(uint32_t entry, uint32_t min, uint32_t max, uint32_t next) {
  if (max == 0) return next;
  return Add(
      {.kind = Node::Kind::kRepeat, .what = entry, .next = next, .options = {}, .min = min, .max = max});
}

void ProgramBuilder::SetOptions(uint32_t split, std::vector<uint32_t> options) {
  program_.nodes[split].options = std::move(options);
}

uint32_t ProgramBuilder::AddDfa(Dfa dfa) {
  const auto [found, is_new] =
      dfa_ids_.try_emplace(dfa.fingerprint(), static_cast<uint32_t>(program_.dfas.size()));
  if (is_new) {
    num_dfa_states_ += dfa.num_states();
    program_.dfas.push_back(std::move(dfa));
    program_.may_end_inside.push_back(0);
  }
  return found->second;
}

Status ProgramBuilder::CheckSize() const {
  if (program_.nodes.size() <= kMaxNodes && num_dfa_states_ <= kMaxDfaStates) return {};
  return ResourceExhausted(fmt::format("the grammar grows beyond {} or {} of automata",
                                       Counted(kMaxNodes, "node"), Counted(kMaxDfaStates, "state")));
}

Status ProgramBuilder::CheckLoops() const {
  // Depth-first over the ways that read nothing: splits and calls. Terminals read at least a byte, so what
  // follows a call is no such way.
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> seen(program_.nodes.size(), kNew);
  for (uint32_t root = 0; root < program_.nodes.size(); ++root) {
    if (seen[root] != kNew) continue;
    std::vector<std::pair<uint32_t, size_t>> path = {{root, 0}};
    seen[root] = kOpen;
    while (!path.empty()) {
      auto& [at, next_option] = path.back();
      const Node& node = program_.nodes[at];
      uint32_t next = kNever;
      if (node.kind == Node::Kind::kSplit && next_option < node.options.size())
        next = node.options[next_option];
      const bool calls = node.kind == Node::Kind::kCall || node.kind == Node::Kind::kRepeat;
      if (calls && next_option == 0) next = node.what;
      if (node.kind == Node::Kind::kRepeat && node.min == 0 && next_option == 1) next = node.next;
      ++next_option;
      if (next == kNever) {
        seen[at] = kDone;
        path.pop_back();
      } else if (seen[next] == kOpen) {
        return InvalidArgument("a reference leads back to itself without anything between");
      } else if (seen[next] == kNew) {
        seen[next] = kOpen;
        path.emplace_back(next, 0);
      }
    }
  }
  return {};
}

void ProgramBuilder::ComputeNeeds() {
  // The least fixed point: a node's need falls when a better way is found, and what leads to it is looked at
  // again.
  std::vector<Node>& nodes = program_.nodes;
  std::vector<std::vector<uint32_t>> before(nodes.size());
  std::vector<uint32_t> pending;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    nodes[i].need = kNever;
    switch (nodes[i].kind) {
      case Node::Kind::kReturn:
        nodes[i].need = 0;
        pending.push_back(i);
        break;
      case Node::Kind::kTerminal:
        if (!program_.dfas[nodes[i].what].IsEmpty()) before[nodes[i].next].push_back(i);
        break;
      case Node::Kind::kCall:
      case Node::Kind::kRepeat:
        before[nodes[i].what].push_back(i);
        before[nodes[i].next].push_back(i);
        break;
      case Node::Kind::kSplit:
        for (const uint32_t option : nodes[i].options) before[option].push_back(i);
        break;
    }
  }
  const auto better = [&](const Node& node) {
    switch (node.kind) {
      case Node::Kind::kTerminal:
        return nodes[node.next].need;
      case Node::Kind::kCall: {
        const uint32_t inner = nodes[node.what].need;
        const uint32_t after = nodes[node.next].need;
        if (inner == kNever || after == kNever) return kNever;
        // A call that returns at once needs no entry on the stack.
        const uint32_t need =
            nodes[node.next].kind == Node::Kind::kReturn ? inner : std::max(inner + 1, after);
        return need > program_.max_depth ? kNever : need;
      }
      case Node::Kind::kRepeat: {
        const uint32_t inner = nodes[node.what].need;
        const uint32_t after = nodes[node.next].need;
        if (after == kNever || node.min == 0) return after;
        if (inner == kNever) return kNever;
        const uint32_t need = std::max(inner + 1, after);
        return need > program_.max_depth ? kNever : need;
      }
      case Node::Kind::kSplit: {
        uint32_t least = kNever;
        for (const uint32_t option : node.options) least = std::min(least, nodes[option].need);
        return least;
      }
      case Node::Kind::kReturn:
        break;
    }
    return uint32_t{0};
  };
  // Breadth first, so that needs are found from small to large and hardly change twice.
  for (size_t i = 0; i < pending.size(); ++i) {
    for (const uint32_t previous : before[pending[i]]) {
      const uint32_t need = better(nodes[previous]);
      if (need >= nodes[previous].need) continue;
      nodes[previous].need = need;
      pending.push_back(previous);
    }
  }
}

Result<Program> ProgramBuilder::Build(uint32_t start, const std::vector<MustLive>& live) && {
  DSV4_TRY(CheckSize());
  DSV4_TRY(CheckLoops());
  ComputeNeeds();
  for (const MustLive& node : live) {
    if (program_.nodes[node.node].need == kNever)
      return Error(InvalidArgument(node.complaint).WithContext(node.label));
  }
  if (program_.nodes[start].need == kNever) return Error(InvalidArgument("no value satisfies the schema"));
  program_.start = start;
  return std::move(program_);
}

}  // namespace dsv4::grammar
