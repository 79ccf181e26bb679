// Grammars and a vocabulary for the tests of this module.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "grammar/matcher.h"

namespace dsv4::grammar::testing {

// Toy tokenizer's ids: all bytes, some merges, added tokens.
inline constexpr TokenId kStop = 299;
inline constexpr TokenId kThinkEnd = 295;
inline constexpr TokenId kDsml = 294;
std::shared_ptr<const TokenTrie> ToyTrie();
std::shared_ptr<const Program> CompileOrDie(std::string_view schema);
Matcher ToyMatcher(std::string_view schema);

// Whether `text` satisfies `schema`, as the matcher sees it.
bool Accepts(std::string_view schema, std::string_view text);

}  // namespace dsv4::grammar::testing
