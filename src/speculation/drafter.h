// Drafter: guesses how a sequence's text goes on. A guess costs rows of a step, never a token of the answer.
// The engine samples each token as if there were no guess, and keeps a guess's rows as far as it was right
// (engine.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::speculation {

enum class Source : uint8_t {
  kSuffix,   // Text that followed the same text before.
  kGrammar,  // Text that a constraint leaves no choice about.
  kMtp,      // The model's draft block (model::Model::Draft),
  kDspark,   // or its drafter of whole blocks.
};
inline constexpr size_t kNumSources = 4;
std::string_view SourceName(Source source);  // "suffix", "grammar", "mtp", "dspark"

struct Draft {
  std::vector<int32_t> tokens;
  // How sure the drafter is, on a scale of its own that only grows: 0 to kMostEvidence - 1 (draft_policy.h
  // learns what it is worth).
  int evidence = 0;
  Source source = Source::kSuffix;
};
// Kinds of the suffix drafter come first.
inline constexpr int kForcedEvidence = 12;
inline constexpr int kMtpEvidence = 13;
// Evidence of a block that has not been drafted yet, and of one whose confidence head has spoken: from here
// on, by DsparkEvidence.
inline constexpr int kDsparkEvidence = 14;
inline constexpr int kMostEvidence = 19;
// Evidence from the chance that the first draft of a block is right. It depends on facts that precede the
// draft, and on none of its tokens. A length that is chosen by it does not depend on numbers drawn for the
// tokens that it admits.
int DsparkEvidence(float chance_of_first);

// Which drafters may be asked, and how much of what they say is verified.
struct Choice {
  bool suffix = true;
  bool mtp = true;
  bool dspark = true;
  int64_t always = 0;  // > 0: so many tokens whenever there is a draft; 0: as many as pay.

  bool any() const { return suffix || mtp || dspark; }
  bool all() const { return suffix && mtp && dspark; }
  static Choice Off() { return {.suffix = false, .mtp = false, .dspark = false}; }
};
// "auto", "off", "suffix", "mtp" or "dspark", the last three with ":K" for Choice::always. K is 1 to
// kMostAlways for suffix and 1 to kMostMtp for the others. A block that is shorter has its own length.
// InvalidArgument says what was got and wanted.
Result<Choice> ParseChoice(std::string_view text);
// The drafters that a choice names, for messages: "mtp", "suffix", "auto", "off".
std::string_view ChoiceName(const Choice& choice);
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
