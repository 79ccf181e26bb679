// As cuda_many_tokens_test.cc, of attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/device_tensors.h"

namespace dsv4::testing {
namespace {

constexpr int64_t kDim = 512;
constexpr int64_t kWindow = 128;

// Operands of attention with so many heads, entries apart.
struct Heads {
  Heads(Device& device, int64_t num_tokens, int64_t heads, uint32_t seed)
      : q(device.Copy(DType::kBF16, {num_tokens, heads, kDim},
                      Bf16s(Normals(num_tokens * heads * kDim, seed)))),
        sink(device.Copy(DType::kF32, {heads}, Normals(heads, seed + 1))),
        o(device.New(DType::kBF16, {num_tokens, heads, kDim})) {}

  // `selected`: of all tokens, or null.
  Status Attend(Device& device, const Cut& cut, const TensorView& selected, int64_t ratio,
                std::span<const ops::AttentionSequence> sequences) const {
    return device.table().attention(device.context(),
                                    {.q = Rows(q.view, cut),
                                     .sink = sink.view,
                                     .selected = selected.is_null() ? TensorView() : Rows(selected, cut),
                                     .o = Rows(o.view, cut),
                                     .softmax_scale = 0.0442F,
                                     .window_size = kWindow,
                                     .ratio = ratio,
                                     .sequences = sequences});
  }

  DeviceTensor q;
  DeviceTensor sink;
  DeviceTensor o;
};

// Attention of tokens that follow `before` others, over a window and top_k compressed entries in pages, or
// those that there are.
void ExpectAttentionTheSame(int64_t top_k, const std::vector<int64_t>& ratios,
                            const std::vector<int64_t>& all_heads, int64_t before = 8200,
                            int64_t num_tokens = 150) {
  Device device;
  constexpr int64_t kRowsPerPage = 64;
  const DeviceTensor ring = device.Copy(DType::kBF16, {kWindow + num_tokens, kDim},
                                        Bf16s(Normals((kWindow + num_tokens) * kDim, 1)));
  std::vector<DeviceTensor> pages;
  std::vector<void*> page_pointers;
  for (uint32_t i = 0; i * kRowsPerPage * 4 < before + num_tokens; ++i) {
    pages.push_back(
        device.Copy(DType::kBF16, {kRowsPerPage, kDim}, Bf16s(Normals(kRowsPerPage * kDim, 100 + i))));
    page_pointers.push_back(pages.back().view.data);
  }
  std::mt19937 random(5);
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::vector<int32_t> entries;
    for (int32_t e = 0; e < (before + t + 1) / 4; ++e) entries.push_back(e);
    std::shuffle(entries.begin(), entries.end(), random);
    entries.resize(static_cast<size_t>(top_k), -1);
    // So that a block's next token, which is 132 further, may have more tiles or fewer.
    if (t % (before > 0 ? 3 : 7) == 0) std::fill(entries.begin() + 70 + t % 50, entries.end(), -1);
    chosen.insert(chosen.end(), entries.begin(), entries.end());
  }
  const DeviceTensor selected = device.Copy(DType::kI32, {num_tokens, top_k}, chosen);
  for (const int64_t heads : all_heads) {
    const Heads of_heads(device, num_tokens, heads, 2);
    for (const int64_t ratio : ratios) {
      ExpectTheSameInAnyCut(
          device, of_heads.o.view,
          "top " + std::to_string(top_k) + ", heads " + std::to_string(heads) + ", ratio " +
              std::to_string(ratio),
          [&](const Cut& cut) {
            const ops::AttentionSequence sequence = {
                .token_begin = 0,
                .num_tokens = cut.end - cut.begin,
                .first_position = before + cut.begin,
                .window = {.data = ring.view.data, .capacity = kWindow + num_tokens, .width = kDim},
                .entries = {.pages = page_pointers,
                            .rows_per_page = kRowsPerPage,
                            .num_rows = static_cast<int64_t>(pages.size()) * kRowsPerPage,
                            .width = kDim}};
            return of_heads.Attend(device, cut, ratio == 4 ? selected.view : TensorView(), ratio,
                                   std::span(&sequence, 1));
          });
    }
  }
}

TEST(CudaManyTokens, AttentionGivesTheBitsOfFewTokens) {
  ExpectAttentionTheSame(200, {0, 4, 128}, {64, 24, 128});
}

// Tokens of one key to ten tiles, more of them than there are SMs.
TEST(CudaManyTokens, AttentionFromTheBeginningGivesTheBitsOfFewTokens) {
  ExpectAttentionTheSame(200, {0, 4, 128}, {64, 24}, 0, 1100);
}

// A cluster's blocks take one to four tiles of 64 keys each; more keys than that are for the kernels without
// clusters.
TEST(CudaManyTokens, AttentionOverAnyNumberOfTilesGivesTheBitsOfFewTokens) {
  for (const int64_t top_k : {320, 384, 448, 512, 832, 1344, 1408, 1920, 1984})
    ExpectAttentionTheSame(top_k, {4}, {64, 20});
}

// Up to 141 tiles a token, of all entries. A block of a few tokens has a tile and one, two or four groups of
// heads.
TEST(CudaManyTokens, AttentionOverVeryManyTilesGivesTheBitsOfFewTokens) {
  ExpectAttentionTheSame(200, {8}, {64, 24}, 70000);
  ExpectAttentionTheSame(200, {8}, {64, 24}, 35000);
  ExpectAttentionTheSame(200, {8}, {64}, 16500);
}

// Attention of a token each of sequences that have seen up to `most` tokens. Steps have as many sequences as
// give clusters of eight blocks, four, two and one. Lists have top_k entries, or all where that is 0. All
// have their keys in the same memory, elsewhere.
void ExpectDecodeTheSame(int64_t top_k, const std::vector<int64_t>& ratios,
                         const std::vector<int64_t>& all_heads, int64_t most) {
  Device device;
  constexpr int64_t kRowsPerPage = 16;
  constexpr int64_t kPoolPages = 97;
  constexpr int64_t kStep = 5;  // Rows from one sequence's ring to the next one's.
  std::vector<Cut> cuts;
  int64_t num_tokens = 0;
  for (const int64_t count : {8, 9, 16, 17, 32, 33, 66, 67}) {
    cuts.push_back({num_tokens, num_tokens + count});
    num_tokens += count;
  }
  const int64_t ring_rows = kWindow + num_tokens * kStep;
  const DeviceTensor ring = device.Copy(DType::kBF16, {ring_rows, kDim}, Bf16s(Normals(ring_rows * kDim, 1)));
  const DeviceTensor pool = device.Copy(DType::kBF16, {kPoolPages * kRowsPerPage, kDim},
                                        Bf16s(Normals(kPoolPages * kRowsPerPage * kDim, 2)));
  std::mt19937 random(7);
  // Every step has sequences that have just begun, some around the ends of tiles, and one that has seen most.
  std::vector<int64_t> positions;
  for (const Cut& cut : cuts) {
    for (const int64_t position : {int64_t{0}, int64_t{62}, int64_t{63}, int64_t{64}, int64_t{127}, most - 1})
      positions.push_back(position);
    while (std::ssize(positions) < cut.end) positions.push_back(static_cast<int64_t>(random()) % most);
  }
  std::vector<int32_t> chosen;
  for (const int64_t position : positions) {
    std::vector<int32_t> entries;
    for (int32_t e = 0; e < (position + 1) / 4; ++e) entries.push_back(e);
    std::shuffle(entries.begin(), entries.end(), random);
    entries.resize(static_cast<size_t>(top_k), -1);
    if (position % 3 == 0 && position < most - 1) {
      for (size_t i = 0; i < entries.size(); i += 5) entries[i] = -1;
    }
    chosen.insert(chosen.end(), entries.begin(), entries.end());
  }
  const DeviceTensor selected =
      top_k > 0 ? device.Copy(DType::kI32, {num_tokens, top_k}, chosen) : DeviceTensor();
  for (const int64_t heads : all_heads) {
    const Heads of_heads(device, num_tokens, heads, 3);
    for (const int64_t ratio : ratios) {
      ExpectTheSameInCuts(
          device, of_heads.o.view, cuts,
          "top " + std::to_string(top_k) + ", up to " + std::to_string(most) + " tokens, heads " +
              std::to_string(heads) + ", ratio " + std::to_string(ratio),
          [&](const Cut& cut) {
            std::vector<std::vector<void*>> tables;
            std::vector<ops::AttentionSequence> sequences;
            tables.reserve(static_cast<size_t>(cut.end - cut.begin));
            for (int64_t t = cut.begin; t < cut.end; ++t) {
              const int64_t position = positions[static_cast<size_t>(t)];
              const int64_t rows = ratio == 0 ? 0 : (position + 1) / ratio;
              std::vector<void*>& table = tables.emplace_back();
              for (int64_t i = 0; i * kRowsPerPage < rows; ++i)
                table.push_back(pool.view.as<uint16_t>() +
                                (t * 7 + i * 3) % kPoolPages * kRowsPerPage * kDim);
              sequences.push_back({.token_begin = t - cut.begin,
                                   .num_tokens = 1,
                                   .first_position = position,
                                   .window = {.data = ring.view.as<uint16_t>() + t * kStep * kDim,
                                              .capacity = kWindow,
                                              .width = kDim},
                                   .entries = {.pages = table,
                                               .rows_per_page = kRowsPerPage,
                                               .num_rows = std::ssize(table) * kRowsPerPage,
                                               .width = kDim}});
            }
            return of_heads.Attend(device, cut, top_k > 0 ? selected.view : TensorView(), ratio, sequences);
          });
    }
  }
}

// One key to ten tiles.
TEST(CudaManyTokens, AttentionOfManySequencesGivesTheBitsOfFewTokens) {
  ExpectDecodeTheSame(512, {4}, {64, 24, 128}, 2600);
  ExpectDecodeTheSame(0, {0, 4, 128}, {64, 24, 128}, 2048);
}

// As many tiles as clusters of a token take, which are then nearly all that shared memory holds; and one
// more, which others take.
TEST(CudaManyTokens, AttentionOfManySequencesOverManyTilesGivesTheBitsOfFewTokens) {
  ExpectDecodeTheSame(1024, {4}, {64}, 5000);
  ExpectDecodeTheSame(1152, {4}, {64, 128}, 6000);
  ExpectDecodeTheSame(1153, {4}, {64}, 6000);
  for (const int64_t tiles : {11, 12, 13, 14, 15, 16, 17, 19})
    ExpectDecodeTheSame(0, {4}, {64}, (tiles - 2) * 256);
}

}  // namespace
}  // namespace dsv4::testing
