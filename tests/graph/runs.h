// Short phrases for running a model in tests. A failing step fails the test.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "model/runtime/model.h"
#include "tests/graph/toy_model.h"

namespace dsv4::test {

inline kv::SequenceState NewSequence(const model::Model& model) {
  auto state = model.NewSequence();
  EXPECT_TRUE(state.has_value());
  return std::move(*state);
}

// Logits of all `tokens`, [tokens, vocab].
inline std::vector<float> RunTokens(model::Model& model, kv::SequenceState& state,
                                    std::span<const int32_t> tokens, model::Observer* observer = nullptr) {
  const model::SequenceChunk chunk{.state = &state, .tokens = tokens, .logits = model::LogitsRows::kAll};
  auto output = model.Step(std::span(&chunk, 1), observer);
  EXPECT_TRUE(output.has_value()) << output.error().ToString();
  if (!output.has_value()) return {};
  return {output->logits.begin(), output->logits.end()};
}

// All logits of a fresh sequence run in chunks of `chunk` tokens.
inline std::vector<float> RunInChunks(model::Model& model, std::span<const int32_t> tokens, size_t chunk,
                                      model::Observer* observer = nullptr) {
  kv::SequenceState state = NewSequence(model);
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const auto part =
        RunTokens(model, state, tokens.subspan(begin, std::min(chunk, tokens.size() - begin)), observer);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

// The rows of tokens [begin, end) of logits from RunInChunks.
inline std::vector<float> LogitsRowsOf(std::span<const float> logits, int64_t begin, int64_t end) {
  if (static_cast<int64_t>(logits.size()) < end * kToyVocab) {
    ADD_FAILURE() << "logits of " << logits.size() / kToyVocab << " positions, wanted " << end;
    return {};
  }
  const auto rows =
      logits.subspan(static_cast<size_t>(begin * kToyVocab), static_cast<size_t>((end - begin) * kToyVocab));
  return {rows.begin(), rows.end()};
}

// The first position at which two runs differ in any bit, -1 when they are the same.
inline int64_t FirstDifference(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != want[i]) return static_cast<int64_t>(i) / kToyVocab;
  }
  return -1;
}

}  // namespace dsv4::test
