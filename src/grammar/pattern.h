// The `pattern` keyword: a part of ECMA-262 regular expressions, as an expression over the bytes of a string.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/json_text.h"
#include "grammar/regex.h"

namespace dsv4::grammar {

// The content of strings in which `pattern` is found, each character in its one spelling (json_text.h). Understood: characters,
// `.`, classes, \d \w \s and their opposites, escapes of controls and punctuation, \xHH, \uHHHH, groups (plain and `(?:`), `|`, `*`,
// `+`, `?`, `{m}`, `{m,}`, `{m,n}`, and `^` and `$` at the ends of the pattern. InvalidArgument, with the place, for anything else (look-around,
// back references, lazy quantifiers, \b, \p) and for what is malformed. `pattern` is UTF-8.
Result<Regex> PatternContent(std::string_view pattern, Spelling spelling = Spelling::kJson);

}  // namespace dsv4::grammar
