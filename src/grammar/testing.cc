// Toy vocabulary and helpers that compile grammars and try texts, for tests of this module.
#include "grammar/testing.h"

#include <cstdlib>
#include <iostream>

#include "grammar/json_schema.h"
#include "tokenizer/testing.h"

namespace dsv4::grammar::testing {

std::shared_ptr<const TokenTrie> ToyTrie() {
  static const std::shared_ptr<const TokenTrie> trie = [] {
    nlohmann::json file = tokenizer::testing::ToyFile();
    // Tokens that end one terminal and begin another, some of them twice over. "Ġ" is the blank.
    int id = 500;
    for (const char* text :
         {"\":", "\":Ġ", "\",", "\",Ġ\"", "{\"",    "}}",    "]}",  "[[",    "[{\"", "\"}", "\"]",     "12",
          "1,",  "2]",   "1}",  "true",   "e,Ġ\"a", "null}", "\\u", "\\u00", "\\\"", "xyz", "\"x\":1}"}) {
      file["model"]["vocab"][text] = id++;
    }
    auto made =
        TokenTrie::Create(tokenizer::testing::ParseOrDie(file), {.think_end = kThinkEnd, .dsml = kDsml});
    if (!made) {
      std::cerr << made.error().ToString() << '\n';
      std::abort();
    }
    return *made;
  }();
  return trie;
}

std::shared_ptr<const Program> CompileOrDie(std::string_view schema) {
  auto program = CompileJsonSchema(schema);
  if (!program) {
    std::cerr << schema << ": " << program.error().ToString() << '\n';
    std::abort();
  }
  return *program;
}

Matcher ToyMatcher(std::string_view schema) { return Matcher(CompileOrDie(schema), ToyTrie(), {kStop}); }

bool Accepts(std::string_view schema, std::string_view text) {
  Matcher matcher = ToyMatcher(schema);
  return matcher.AcceptBytes(text).ok() && matcher.IsComplete();
}

}  // namespace dsv4::grammar::testing
