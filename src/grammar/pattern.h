// Regular expressions as people write them, as expressions over bytes: the `pattern` keyword, and the regexes
// of requests and grammars.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/json_text.h"
#include "grammar/regex.h"

namespace dsv4::grammar {

// The content of strings in which `pattern` is found, each character in its one spelling (json_text.h).
// Understood:
//   characters, `.`, classes, \d \w \s and their opposites,
//   escapes of controls and punctuation, \xHH, \uHHHH, \u{H},
//   groups (plain, `(?:` and named), `|`, `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`,
//   the same with a `?` behind, which changes nothing about the texts that fit,
//   `^` and `$` at the ends of the pattern.
// InvalidArgument, with the position, for anything else (look-around, back references, \b, \p) and for what
// is malformed. `pattern` is UTF-8.
Result<Regex> PatternContent(std::string_view pattern, Spelling spelling = Spelling::kJson);

struct PatternFlags {
  bool ignore_case = false;  // Case of the letters A to Z.
  bool dot_all = false;      // `.` is any character, ends of lines too.
  bool newline_ends_lines =
      false;  // And nothing else does, for `.`: as Rust and Python have it, not ECMA-262.
};
// The texts that `pattern` matches from their first to their last character, as they are. Understood is the
// same, and `(?i)` and `(?s)` at its start.
Result<Regex> WholePattern(std::string_view pattern, PatternFlags flags = {});

}  // namespace dsv4::grammar
