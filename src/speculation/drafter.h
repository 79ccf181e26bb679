// Drafter: guesses how a sequence's text goes on. A guess costs rows of a step, never a token of the answer: the engine samples
// each token as if there were no guess, and keeps a guess's rows as far as it was right (engine.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::speculation {

enum class Source : uint8_t {
  kSuffix,   // What followed the same text before.
  kGrammar,  // Text that a constraint leaves no choice about.
  kMtp,      // The model's draft block (model::Model::Draft).
};
inline constexpr size_t kNumSources = 3;
std::string_view SourceName(Source source);  // "suffix", "grammar", "mtp"

struct Draft {
  std::vector<int32_t> tokens;
  // How sure the drafter is, on a scale of its own that only grows: 0 to kMostEvidence - 1 (draft_policy.h learns what it is worth).
  int evidence = 0;
  Source source = Source::kSuffix;
};
// Of the suffix drafter the first ones.
inline constexpr int kForcedEvidence = 12;
inline constexpr int kMtpEvidence = 13;
inline constexpr int kMostEvidence = 14;

// Which drafters may be asked, and how much of what they say is verified.
struct Choice {
  bool suffix = true;
  bool mtp = true;
  int64_t always = 0;  // > 0: so many tokens whenever there is a draft; 0: as many as pay.

  bool any() const { return suffix || mtp; }
};
// "auto", "off", "suffix" or "mtp", the last two with ":K" for Choice::always, 1 to kMostAlways of suffix and to kMostMtp of mtp.
// InvalidArgument says what was got and wanted.
Result<Choice> ParseChoice(std::string_view text);
inline constexpr int64_t kMostAlways = 64;
inline constexpr int64_t kMostMtp = 16;

// One per sequence; one thread at a time.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // `text` is all of the sequence: what was given before, and what has come since.
  virtual void Read(std::span<const int32_t> text) = 0;
  // Up to `most` tokens that may follow what was read; none if it has no idea.
  virtual Draft Propose(int64_t most) = 0;
};

// From the text alone: what followed the longest end of the text when that stood there before.
std::unique_ptr<Drafter> MakeSuffixDrafter();

}  // namespace dsv4::speculation
