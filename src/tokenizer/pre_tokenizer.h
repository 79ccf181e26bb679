// Pre-tokenization: cutting text into the pieces that BPE works on, none of which a token ever crosses.
//
// One contract has two implementations. The generic one runs any list of Split rules with PCRE2. A
// hand-written scanner does the three rules of V4, and is chosen when a file's rules are exactly those. The
// first is the judge of the second.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::tokenizer {

// Treatment of the matches of a Split rule; the names are those of tokenizer.json.
enum class SplitBehavior {
  kIsolated,            // Matches and the text between them are all pieces.
  kRemoved,             // Matches are dropped.
  kMergedWithPrevious,  // A match joins the text before it, unless that is itself a match.
  kMergedWithNext,      // A match joins the text after it, unless that is itself a match.
  kContiguous,          // Neighbouring matches form one piece.
};

// One `Split` pre-tokenizer of tokenizer.json.
struct SplitRule {
  std::string pattern;      // UTF-8.
  bool is_literal = false;  // {"String": ...} instead of {"Regex": ...}
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // The text between the matches takes the part of the matches.

  friend bool operator==(const SplitRule&, const SplitRule&) = default;
};

using PieceSink = std::function<void(std::string_view)>;

// Immutable after construction; Split may be called from several threads at once.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Hands the non-empty pieces of `text` to `sink` in order; they point into it. The rules apply one after
  // the other, each to every piece of the one before. A look-ahead therefore sees the end of its piece as the
  // end of the text. `text` must be well-formed UTF-8 without added tokens.
  // ResourceExhausted when a generic pattern needs more than PCRE2's match limits on this text.
  virtual Status Split(std::string_view text, const PieceSink& sink) const = 0;
};

// The three rules of V4 in order: numbers, Chinese and Japanese runs, words.
const std::vector<SplitRule>& V4SplitRules();

// The scanner if `rules` equal V4SplitRules(), else the generic engine.
Result<std::unique_ptr<PreTokenizer>> MakePreTokenizer(const std::vector<SplitRule>& rules);

// The hand-written scanner for V4SplitRules(). Linear in the length of the text.
std::unique_ptr<PreTokenizer> MakeV4PreTokenizer();

// The generic engine: PCRE2 with Unicode properties, compiled to machine code where PCRE2 can. Patterns of
// tokenizer.json are written for Oniguruma. As there, \s is Unicode White_Space and ^ and $ match at line
// ends. \w and \h mean different things in the two and are refused.
// Errors: InvalidArgument for a pattern PCRE2 does not compile, Unimplemented for \w, \W, \h, \H.
Result<std::unique_ptr<PreTokenizer>> MakeRegexPreTokenizer(const std::vector<SplitRule>& rules);

}  // namespace dsv4::tokenizer
