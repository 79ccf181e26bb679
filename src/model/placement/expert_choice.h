// ChooseExperts: the split of a layer's routed experts that takes least time, by arithmetic from measured
// rates (docs/expert-tiers.md). Every expert counts as chosen equally often.
#pragma once

#include <cstdint>
#include <string>

#include "model/placement/expert_split.h"

namespace dsv4::model {

struct ExpertCosts {
  int64_t num_layers = 0;
  int64_t num_experts = 0;  // Experts in a layer,
  int64_t top_k = 0;        // of which a token chooses so many.
  double expert_bytes = 0;
  int64_t room = 0;      // Experts of all layers that the device has room for.
  int64_t pinnable = 0;  // Experts of all layers that fit into the host's memory.
  // Bytes a second of one token's experts: with the host's kernels, and from the host's memory to the device;
  // alone, and while both run.
  double host = 0;
  double link = 0;
  double host_beside = 0;
  double link_beside = 0;
  double host_prompt =
      0;  // Bytes a second of experts, each multiplied with many tokens: bytes count once a token.
  int64_t chunk_tokens = 8192;  // Tokens in a prompt's pass.
  // A pass with so many choices for each of a layer's experts brings the cached ones before the router has
  // chosen.
  int64_t streamed_choices = 0;
  // Seconds of a token's step beside what it waits for experts that are not on the device. No choice depends
  // on it.
  double rest = 0;
};

// Share of cached experts of a layer that find no slot.
double MissedShare(const ExpertSplit& split, const ExpertCosts& costs);

// Times of routed experts that are not multiplied from the device's memory, for one token.
struct ExpertTimes {
  double host = 0;    // Seconds that the host multiplies,
  double link = 0;    // and that the link brings; side by side in every layer.
  double both = 0;    // Time that a token waits for them, by how they fall on layers.
  double prompt = 0;  // Time for a prompt's token.

  // Mix of tokens that judges a split: a token of an answer, and kPromptTokens of prompts.
  static constexpr double kPromptTokens = 4;
  double judged() const { return both + kPromptTokens * prompt; }
};

ExpertTimes TimesOf(const ExpertSplit& split, const ExpertCosts& costs);

struct ExpertChoice {
  ExpertSplit split;
  ExpertTimes times;
};

// Among: residents beside experts of the host, and cached ones, beside which the host has the others or none.
// Without room for all.
ExpertChoice ChooseExperts(const ExpertCosts& costs);

// How passes of a prompt get a layer's experts, by the number of their tokens.
struct PromptCrossings {
  int64_t streamed_from =
      0;             // Tokens from which on a pass brings all cached ones; before, those that are chosen.
  double layer = 0;  // Seconds in which the link brings those of a layer that are not there.
  int64_t host_until =
      0;  // Up to so many tokens the host would multiply an expert sooner than the link brings it.
};
PromptCrossings CrossingsOf(const ExpertSplit& split, const ExpertCosts& costs);
// The same in words.
std::string PromptText(const ExpertSplit& split, const ExpertCosts& costs);

// Advice on what bounds a token with this split and what would make it faster: words for people.
std::string Advice(const ExpertChoice& choice);

}  // namespace dsv4::model
