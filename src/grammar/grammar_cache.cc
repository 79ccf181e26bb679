#include "grammar/grammar_cache.h"

#include <algorithm>
#include <utility>

namespace dsv4::grammar {
namespace {

size_t NumStates(const Program& program) {
  size_t count = program.nodes.size();
  for (const Dfa& dfa : program.dfas) count += dfa.num_states();
  return count;
}

}  // namespace

std::shared_ptr<const Program> GrammarCache::Find(const AnswerRules& rules) {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) { return one.rules == rules; });
  if (entry == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->program;
}

Result<std::shared_ptr<const Program>> GrammarCache::Compile(const AnswerRules& rules) {
  {
    const std::lock_guard lock(mutex_);
    if (std::shared_ptr<const Program> program = Find(rules)) return program;
  }
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const Program> program, CompileAnswer(rules));
  const size_t num_states = NumStates(*program);
  const std::lock_guard lock(mutex_);
  if (num_states > max_states_ || Find(rules) != nullptr) return program;
  entries_.push_front({rules, program, num_states});
  num_states_ += num_states;
  while (num_states_ > max_states_) {
    num_states_ -= entries_.back().num_states;
    entries_.pop_back();
  }
  return program;
}

}  // namespace dsv4::grammar
