// Least-recently-used cache of compiled grammars, and of refusals.
#include "grammar/rules/grammar_cache.h"

#include <algorithm>

namespace dsv4::grammar {
namespace {

size_t StatesOf(const Program& program) {
  size_t count = program.nodes.size();
  for (const Dfa& dfa : program.dfas) count += dfa.num_states();
  return count;
}

size_t NumBytes(const ContentRule& rule) { return rule.text.size() + rule.label.size(); }

size_t NumBytes(const AnswerRules& rules) {
  size_t count = rules.schema.size() + NumBytes(rules.rule);
  for (const CallableTool& tool : rules.tools) {
    count += tool.name.size() + tool.parameters.size() + tool.label.size();
    if (tool.text) count += NumBytes(tool.text->rule);
  }
  return count;
}

constexpr size_t kMaxEntries = 1024;  // They are looked through one by one.

}  // namespace

const GrammarCache::Made* GrammarCache::Find(const AnswerRules& rules) {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) { return one.rules == rules; });
  if (entry == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, entry);
  return &entry->made;
}

bool GrammarCache::Knows(const AnswerRules& rules) {
  const std::lock_guard lock(mutex_);
  return Find(rules) != nullptr;
}

Result<std::shared_ptr<const Program>> GrammarCache::Compile(const AnswerRules& rules) {
  {
    const std::lock_guard lock(mutex_);
    if (const Made* made = Find(rules)) return *made;
  }
  Made made = CompileAnswer(rules);
  const size_t num_states = (made ? StatesOf(**made) : 0) + NumBytes(rules) / 64;
  const std::lock_guard lock(mutex_);
  if (num_states > max_states_ || Find(rules) != nullptr) return made;
  entries_.push_front({rules, made, num_states});
  num_states_ += num_states;
  while (num_states_ > max_states_ || entries_.size() > kMaxEntries) {
    num_states_ -= entries_.back().num_states;
    entries_.pop_back();
  }
  return made;
}

}  // namespace dsv4::grammar
