// Regular expressions as nodes of a grammar, for those whose automaton would be large: their counts are kept on the stack.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "grammar/dfa.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"

namespace dsv4::grammar {

// Little of what is left, for an automaton for which there is another way. The cost of making it falls from both.
class TrialLimits {
 public:
  explicit TrialLimits(DfaLimits& all);
  ~TrialLimits();
  TrialLimits(const TrialLimits&) = delete;
  TrialLimits& operator=(const TrialLimits&) = delete;

 private:
  DfaLimits& all_;
  DfaLimits before_;
  int64_t given_;
};

// A text of `regex`, whose automaton is too large, then `next`. ResourceExhausted where it has no large count, or parts of it
// are too large too. No text has the character `excluded`; empty: all may be there.
Result<uint32_t> RegexNodes(GrammarParts& parts, const Regex& regex, const std::string& excluded,
                            uint32_t next);

}  // namespace dsv4::grammar
