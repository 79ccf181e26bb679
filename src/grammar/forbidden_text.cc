// Automaton of texts that contain none of some words.
#include "grammar/forbidden_text.h"

#include <utility>

#include "grammar/regex.h"
#include "grammar/schema_compiler.h"
#include "grammar/token_trie.h"

namespace dsv4::grammar {

Result<std::shared_ptr<const Program>> CompileWithoutWords(const std::vector<std::string>& words) {
  std::vector<Regex> literals;
  for (const std::string& word : words) {
    if (word.empty()) return Error(InvalidArgument("got an empty word, wanted at least one character"));
    literals.push_back(Literal(word));
  }
  GrammarParts parts;
  // Any bytes of ordinary tokens, and any marker.
  const Regex any = Repeat(ByteRange(0, kOtherMarkerByte), 0, kUnbounded);
  DSV4_ASSIGN_OR_RETURN(const Dfa all, Dfa::Compile(any, parts.limits));
  DSV4_ASSIGN_OR_RETURN(const Dfa with,
                        Dfa::Compile(Concat({any, Either(std::move(literals)), any}), parts.limits));
  DSV4_ASSIGN_OR_RETURN(const Dfa without, Dfa::Subtract(all, with, parts.limits));
  const uint32_t id = parts.builder.AddDfa(without);
  parts.builder.MayEndInside(id);
  const uint32_t start = parts.builder.Terminal(id, parts.end());
  DSV4_ASSIGN_OR_RETURN(Program program, std::move(parts.builder).Build(start));
  return std::make_shared<const Program>(std::move(program));
}

}  // namespace dsv4::grammar
