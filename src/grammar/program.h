// A grammar as a pushdown automaton whose terminals are automata over bytes.
//
// A node lies between terminals. A thread of a run stands inside a terminal and knows the node that comes
// after it and a stack of nodes to return to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/dfa.h"

namespace dsv4::grammar {

struct Node {
  enum class Kind : uint8_t {
    kTerminal,  // Bytes of dfas[what], then `next`.
    kCall,      // From node `what` to its return, then `next`.
    kSplit,     // One of `options`; of none: a dead end.
    kReturn,
    kRepeat,  // `min` to `max` times from node `what` to its return, then `next`: by a counter on the stack.
  };
  Kind kind = Kind::kReturn;
  uint32_t what = 0;
  uint32_t next = 0;
  std::vector<uint32_t> options;
  uint32_t min = 0;
  uint32_t max = 0;  // kEndless: no bound.
  static constexpr uint32_t kEndless = UINT32_MAX;
  // How many calls deeper than here the flattest way to the return goes; kNever when there is none within Program::max_depth.
  uint32_t need = 0;
};

inline constexpr uint32_t kNever = UINT32_MAX;
// Calls inside each other at most, unless a builder was told otherwise: about the depth of a JSON text's brackets.
inline constexpr uint32_t kMaxDepth = 64;

struct Program {
  std::vector<Node> nodes;
  std::vector<Dfa> dfas;
  // By automaton: whether the whole text may also end inside it, as free text may in front of a call.
  std::vector<uint8_t> may_end_inside;
  uint32_t start = 0;
  uint32_t max_depth = kMaxDepth;
  int64_t work = 0;  // Cost of its automata, as DfaLimits counts it.
};

// Adds nodes one by one; ids are indices. Parts of a program that cannot be reached cost memory only.
class ProgramBuilder {
 public:
  static constexpr size_t kMaxNodes = 200'000;
  static constexpr size_t kMaxDfaStates = 400'000;

  uint32_t Terminal(uint32_t dfa, uint32_t next);
  uint32_t Call(uint32_t entry, uint32_t next);
  uint32_t Split(std::vector<uint32_t> options);
  uint32_t Return();
  // A turn from `entry` reads at least a byte. `max` may be Node::kEndless.
  uint32_t Repeat(uint32_t entry, uint32_t min, uint32_t max, uint32_t next);
  void SetOptions(uint32_t split, std::vector<uint32_t> options);
  // The id of the automaton; equal ones share it.
  uint32_t AddDfa(Dfa dfa);
  // The text may end anywhere inside this automaton. Only of those that no call leads to.
  void MayEndInside(uint32_t dfa) { program_.may_end_inside[dfa] = 1; }

  // Texts may be nested at least so deep.
  void RaiseDepth(uint32_t depth) { program_.max_depth = std::max(program_.max_depth, depth); }

  // ResourceExhausted when the program has become too large.
  Status CheckSize() const;

  // A node from which some text must lead to the return, what an error calls it, and what the error says.
  struct MustLive {
    uint32_t node;
    std::string label;
    std::string complaint = "no value satisfies the schema";
  };
  // The program that begins at `start`. InvalidArgument when a rule calls itself before it reads a byte, or no text within
  // the depth satisfies it or one of `live`.
  Result<Program> Build(uint32_t start, const std::vector<MustLive>& live = {}) &&;

 private:
  uint32_t Add(Node node);
  Status CheckLoops() const;
  void ComputeNeeds();

  Program program_;
  std::map<Dfa::Fingerprint, uint32_t> dfa_ids_;
  size_t num_dfa_states_ = 0;
};

}  // namespace dsv4::grammar
