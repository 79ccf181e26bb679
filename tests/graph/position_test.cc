// Rotation at position 1,000,000, through the whole graph. The state is brought there by empty appends: all
// earlier rows are zero, which costs no computation.
#include <gtest/gtest.h>

#include <cmath>

#include "model/config/rope_table.h"
#include "tests/graph/recorder.h"
#include "tests/graph/runs.h"

namespace dsv4::test {
namespace {

using model::Model;
using model::Numerics;

constexpr int64_t kFar = 1'000'000;

void SkipTo(kv::SequenceState& state, int64_t length) {
  while (state.length() < length) {
    ASSERT_TRUE(state.BeginAppend(std::min(state.layout().max_chunk_tokens, length - state.length())).ok());
    state.CommitAppend();
  }
}

// The contract: the angle is one fp32 product, cosine and sine are accurate.
std::vector<float> Rotate(std::span<const float> row, int64_t width, int64_t position,
                          std::span<const float> frequencies, double direction) {
  std::vector<float> out(row.begin(), row.end());
  const auto dims = static_cast<size_t>(width);
  for (size_t head = 0; head < row.size() / dims; ++head) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      const double c = std::cos(static_cast<double>(angle));
      const double s = direction * std::sin(static_cast<double>(angle));
      const size_t even = (head + 1) * dims - 2 * frequencies.size() + 2 * i;
      const double x = row[even];
      const double y = row[even + 1];
      out[even] = static_cast<float>(x * c - y * s);
      out[even + 1] = static_cast<float>(x * s + y * c);
    }
  }
  return out;
}

void ExpectRotated(const Recorder& recorder, int layer, const std::string& before, const std::string& after,
                   int64_t width, const std::vector<int64_t>& positions, std::span<const float> frequencies,
                   double direction) {
  const Recorder::Tensor& from = recorder.Get(layer, before);
  const Recorder::Tensor& to = recorder.Get(layer, after);
  ASSERT_EQ(from.num_rows, static_cast<int64_t>(positions.size())) << before;
  for (int64_t row = 0; row < from.num_rows; ++row) {
    const auto want =
        Rotate(from.Row(row), width, positions[static_cast<size_t>(row)], frequencies, direction);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(to.Row(row)[i], want[i], 1e-6 * (1 + std::abs(want[i])))
          << "layer " << layer << ", " << after << ", row " << row << ", element " << i;
    }
  }
}

TEST(Position, RotationsAtAMillionAreExact) {
  const auto model =
      MakeToyModel({.format = ToyFormat::kF32, .ratios = {0, 4, 128}}, ToyModelOptions(Numerics::kPlain));
  kv::SequenceState state = NewSequence(*model);
  SkipTo(state, kFar - 1);
  Recorder recorder;
  const auto logits = RunTokens(*model, state, RandomTokens(70, 1), &recorder);
  for (const float value : logits) ASSERT_TRUE(std::isfinite(value));

  const model::ModelConfig& config = model->config();
  std::vector<int64_t> positions;
  for (int64_t p = kFar - 1; p < kFar + 69; ++p) positions.push_back(p);
  for (int layer = 0; layer < 3; ++layer) {
    const bool compressed = config.layers[static_cast<size_t>(layer)].rope == model::RopeKind::kCompressed;
    const auto frequencies =
        model::RopeFrequencies(compressed ? config.compress_rope : config.rope, config.qk_rope_head_dim);
    ExpectRotated(recorder, layer, "attn.q_norm", "attn.q", config.head_dim, positions, frequencies, 1);
    ExpectRotated(recorder, layer, "attn.kv_norm", "attn.kv", config.head_dim, positions, frequencies, 1);
    ExpectRotated(recorder, layer, "attn.o", "attn.o_unrotated", config.head_dim, positions, frequencies, -1);
    const int64_t ratio = config.layers[static_cast<size_t>(layer)].ratio;
    if (ratio == 0) continue;
    std::vector<int64_t> entries;  // Rotated as the first token of their block.
    for (int64_t j = (kFar - 1) / ratio; j < (kFar + 69) / ratio; ++j) entries.push_back(j * ratio);
    ASSERT_FALSE(entries.empty());
    ExpectRotated(recorder, layer, "attn.compressor.norm", "attn.compressed", config.head_dim, entries,
                  frequencies, 1);
    if (ratio != 4) continue;
    ExpectRotated(recorder, layer, "attn.indexer.q_b", "attn.indexer.q", config.index_head_dim, positions,
                  frequencies, 1);
    ExpectRotated(recorder, layer, "attn.indexer.compressor.norm", "attn.indexer.compressed",
                  config.index_head_dim, entries, frequencies, 1);
  }
}

// Attention depends on distances only. The same text after a million empty positions gives nearly the same
// logits as at the start, once nothing before the text is within reach. Nearly, since fp32 holds an angle of
// a million to about 0.03.
TEST(Position, WindowAttentionIsRelative) {
  const auto model =
      MakeToyModel({.format = ToyFormat::kF32, .ratios = {0, 0}}, ToyModelOptions(Numerics::kPlain));
  const auto tokens = RandomTokens(3 * kToyWindow, 9);
  const auto near = RunInChunks(*model, tokens, 16);
  kv::SequenceState state = NewSequence(*model);
  SkipTo(state, kFar);
  const auto far = RunTokens(*model, state, tokens);
  for (int64_t p = 2 * kToyWindow; p < 3 * kToyWindow; ++p) {
    const auto a = LogitsRowsOf(near, p, p + 1);
    const auto b = LogitsRowsOf(far, p, p + 1);
    double ab = 0;
    double aa = 0;
    double bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      ab += double(a[i]) * double(b[i]);
      aa += double(a[i]) * double(a[i]);
      bb += double(b[i]) * double(b[i]);
    }
    EXPECT_GT(ab / std::sqrt(aa * bb), 0.9995) << p;
  }
}

TEST(Position, ChunksAtAMillionAgreeWithDecode) {
  const auto model = MakeToyModel({.format = ToyFormat::kRelease, .ratios = {0, 4, 128}},
                                  ToyModelOptions(Numerics::kRelease));
  kv::SequenceState state = NewSequence(*model);
  SkipTo(state, kFar - 30);
  auto fork = state.Fork();
  ASSERT_TRUE(fork.has_value());
  const auto tokens = RandomTokens(40, 2);
  const auto prefill = RunTokens(*model, state, tokens);
  std::vector<float> decode;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto row = RunTokens(*model, *fork, std::span(tokens).subspan(i, 1));
    decode.insert(decode.end(), row.begin(), row.end());
  }
  EXPECT_EQ(FirstDifference(decode, prefill), -1);
}

}  // namespace
}  // namespace dsv4::test
