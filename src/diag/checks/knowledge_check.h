// knowledge: does the model say what every model knows? A text of facts (capitals of large countries) is read
// in one pass. Behind "The capital of France is" the answer must be the likeliest continuation. From the
// fourth sentence on, a model foresees the words that all sentences have in common. Weights that were
// damaged, read wrongly or exchanged break one or the other, whatever their statistics are. No reference is
// needed.
//
// Search for the faulty half-layer. Where answers are wrong, the text is read once more for every half-layer
// with that half left out. Its output is zero, and the residual streams go on without it. A half without
// which the answers come back is where to look first.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

// Ids of a text and where the answers are in it. The first sentence only shows the form.
struct KnownText {
  struct Answer {
    std::string subject;   // "France"
    std::string expected;  // "Paris"
    int64_t first = 0;     // Index of its first token, 1 or more.
    int64_t count = 0;     // Tokens, 1 or more.
  };
  std::vector<int32_t> tokens;
  std::vector<Answer> answers;
  std::vector<int64_t>
      form;  // Indices of tokens that all sentences have in common, in those that follow the third.
  // For messages: a token as people can read it.
  std::function<std::string(int32_t)> show;
};

// A finding for
//   logits that are not finite;
//   more than one answer in sixteen that is not the likeliest continuation, or answers whose mean probability is below 0.8;
//   words in common that take more than 1.2 nats each.
// With `leave_out` the fault is at the output of a half-layer, if there is one. Without that half-layer the
// answers lose most of their nats. Not applicable where layers are left out (ModelOptions::max_layers) or the
// text is longer than one pass of the model. Errors: those of Model::Step.
Result<CheckReport> CheckKnowledge(const Subject& subject, const KnownText& text, bool leave_out);

}  // namespace dsv4::diag
