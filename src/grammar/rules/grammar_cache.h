// GrammarCache: grammars that were compiled lately. An agent asks with the same tools turn after turn, and
// compiling takes milliseconds.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "grammar/rules/answer_grammar.h"

namespace dsv4::grammar {

class GrammarCache {
 public:
  // Keeps what was made of rules, `max_states` automaton states and nodes together, the least recently used
  // go first. Texts of rules count too, 64 bytes as a state.
  explicit GrammarCache(size_t max_states = 100'000) : max_states_(max_states) {}

  // CompileAnswer of the rules, or what it made of equal ones before: an error too. From any thread; two that
  // ask at one time may both compile.
  Result<std::shared_ptr<const Program>> Compile(const AnswerRules& rules);
  // Whether Compile has nothing to compile.
  bool Knows(const AnswerRules& rules);

 private:
  using Made = Result<std::shared_ptr<const Program>>;
  struct Entry {
    AnswerRules rules;
    Made made;
    size_t num_states = 0;
  };
  // Null when it is not there.
  const Made* Find(const AnswerRules& rules);

  const size_t max_states_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // The most recently used first.
  size_t num_states_ = 0;     // States of all.
};

}  // namespace dsv4::grammar
