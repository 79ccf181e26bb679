// Ops that run as one launch when they follow each other: the results are those of each alone.
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/device_tensors.h"

namespace dsv4::testing {
namespace {

// `first` and `second`, one launch if nothing comes between, must write what they write one by one.
void ExpectOneLaunch(Device& device, const std::string& what, const std::function<Status()>& first,
                     const std::function<Status()>& second, const std::vector<const DeviceTensor*>& written) {
  const auto all = [&] {
    std::vector<std::vector<std::byte>> bytes;
    for (const DeviceTensor* tensor : written) bytes.push_back(device.Bytes(tensor->view));
    return bytes;
  };
  const auto before = all();
  const auto restore = [&] {
    for (size_t i = 0; i < written.size(); ++i) {
      const Status status =
          device.memory().CopyFromHost(written[i]->view.data, before[i].data(), before[i].size(), nullptr);
      ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
    }
    all();  // Hands what is queued to the device.
  };
  Status status = first();
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  all();
  status = second();
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  const auto alone = all();
  EXPECT_NE(alone, before) << what;
  restore();
  const int64_t launches = device.launches();
  status = first();
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  status = second();
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  const auto together = all();
  EXPECT_EQ(device.launches() - launches, 1) << what;
  for (size_t i = 0; i < written.size(); ++i)
    EXPECT_EQ(together[i] == alone[i], true) << what << ", output " << i;
}

TEST(CudaFused, CombineAndHcPost) {
  constexpr int64_t kMult = 4;
  for (const int64_t dim : {int64_t{1024}, int64_t{4096}, int64_t{1080}}) {
    for (const int64_t tokens : {int64_t{1}, int64_t{7}, int64_t{100}}) {
      for (const bool in_place : {true, false}) {
        Device device;
        const DeviceTensor routed = device.Copy(DType::kF32, {tokens, dim}, Normals(tokens * dim, 1));
        const DeviceTensor shared = device.Copy(DType::kBF16, {tokens, dim}, Bf16s(Normals(tokens * dim, 2)));
        const DeviceTensor y = device.New(DType::kBF16, {tokens, dim});
        const DeviceTensor streams =
            device.Copy(DType::kBF16, {tokens, kMult, dim}, Bf16s(Normals(tokens * kMult * dim, 3)));
        const DeviceTensor out = device.New(DType::kBF16, {tokens, kMult, dim});
        const DeviceTensor post = device.Copy(DType::kF32, {tokens, kMult}, Normals(tokens * kMult, 4));
        const DeviceTensor comb =
            device.Copy(DType::kF32, {tokens, kMult, kMult}, Normals(tokens * kMult * kMult, 5));
        const DeviceTensor& sum = in_place ? shared : y;
        ExpectOneLaunch(
            device, "dim " + std::to_string(dim) + ", " + std::to_string(tokens) + " tokens",
            [&] {
              return device.table().moe_combine(
                  device.context(), {.routed = routed.view, .shared = shared.view, .y = sum.view});
            },
            [&] {
              return device.table().hc_post(device.context(), {.y = sum.view,
                                                               .residual = streams.view,
                                                               .post = post.view,
                                                               .comb = comb.view,
                                                               .out = out.view});
            },
            {&sum, &out});
      }
    }
  }
}

TEST(CudaFused, AttentionAndTheRotationOfItsOutput) {
  constexpr int64_t kDim = 512;
  constexpr int64_t kWindow = 128;
  constexpr int64_t kFirst = 700;
  constexpr int64_t kFrequencies = 32;
  for (const int64_t heads : {int64_t{64}, int64_t{20}}) {
    for (const int64_t tokens : {int64_t{1}, int64_t{8}}) {
      Device device;
      const DeviceTensor ring =
          device.Copy(DType::kBF16, {kWindow + tokens, kDim}, Bf16s(Normals((kWindow + tokens) * kDim, 1)));
      const DeviceTensor q =
          device.Copy(DType::kBF16, {tokens, heads, kDim}, Bf16s(Normals(tokens * heads * kDim, 2)));
      const DeviceTensor sink = device.Copy(DType::kF32, {heads}, Normals(heads, 3));
      const DeviceTensor o = device.New(DType::kBF16, {tokens, heads, kDim});
      std::vector<int32_t> positions;
      for (int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<int32_t>(kFirst + t));
      const DeviceTensor device_positions = device.Copy(DType::kI32, {tokens}, positions);
      const DeviceTensor frequencies = device.Copy(DType::kF32, {kFrequencies}, Normals(kFrequencies, 4));
      const ops::AttentionSequence sequence = {
          .token_begin = 0,
          .num_tokens = tokens,
          .first_position = kFirst,
          .window = {.data = ring.view.data, .capacity = kWindow + tokens, .width = kDim},
          .entries = {}};
      ExpectOneLaunch(
          device, std::to_string(heads) + " heads, " + std::to_string(tokens) + " tokens",
          [&] {
            return device.table().attention(device.context(), {.q = q.view,
                                                               .sink = sink.view,
                                                               .selected = {},
                                                               .o = o.view,
                                                               .softmax_scale = 0.0442F,
                                                               .window_size = kWindow,
                                                               .ratio = 0,
                                                               .sequences = std::span(&sequence, 1)});
          },
          [&] {
            return device.table().rope(device.context(), {.x = o.view,
                                                          .positions = device_positions.view,
                                                          .frequencies = frequencies.view,
                                                          .inverse = true});
          },
          {&o});
    }
  }
}

// Attention takes the indexer's lists as they are if nothing comes between.
TEST(CudaFused, TheIndexersListsNeedNoSorting) {
  constexpr int64_t kHeads = 64;
  constexpr int64_t kIndexerHeads = 64;
  constexpr int64_t kIndexerDim = 128;
  constexpr int64_t kDim = 512;
  constexpr int64_t kWindow = 128;
  constexpr int64_t kRowsPerPage = 64;
  constexpr int64_t kTopK = 512;
  // Fewer visible entries than are chosen, about as many, and more.
  for (const int64_t first : {int64_t{5}, int64_t{2045}, int64_t{9000}}) {
    for (const int64_t tokens : {int64_t{1}, int64_t{8}, int64_t{40}}) {
      Device device;
      std::vector<DeviceTensor> pages;
      std::vector<void*> keys;
      std::vector<void*> entries;
      for (uint32_t i = 0; i * kRowsPerPage * 4 < first + tokens; ++i) {
        pages.push_back(device.Copy(DType::kBF16, {kRowsPerPage, kIndexerDim},
                                    Bf16s(Normals(kRowsPerPage * kIndexerDim, 300 + i))));
        keys.push_back(pages.back().view.data);
        pages.push_back(
            device.Copy(DType::kBF16, {kRowsPerPage, kDim}, Bf16s(Normals(kRowsPerPage * kDim, 100 + i))));
        entries.push_back(pages.back().view.data);
      }
      const auto num_rows = static_cast<int64_t>(keys.size()) * kRowsPerPage;
      const DeviceTensor ring =
          device.Copy(DType::kBF16, {kWindow + tokens, kDim}, Bf16s(Normals((kWindow + tokens) * kDim, 1)));
      const DeviceTensor indexer_q = device.Copy(DType::kBF16, {tokens, kIndexerHeads, kIndexerDim},
                                                 Bf16s(Normals(tokens * kIndexerHeads * kIndexerDim, 2)));
      const DeviceTensor head_weights = device.Copy(DType::kBF16, {tokens, kIndexerHeads},
                                                    Bf16s(Normals(tokens * kIndexerHeads, 3, 0.01F)));
      const DeviceTensor selected = device.New(DType::kI32, {tokens, kTopK});
      const DeviceTensor q =
          device.Copy(DType::kBF16, {tokens, kHeads, kDim}, Bf16s(Normals(tokens * kHeads * kDim, 4)));
      const DeviceTensor sink = device.Copy(DType::kF32, {kHeads}, Normals(kHeads, 5));
      const DeviceTensor o = device.New(DType::kBF16, {tokens, kHeads, kDim});
      const ops::IndexerSequence indexed = {
          .token_begin = 0,
          .num_tokens = tokens,
          .first_position = first,
          .keys = {.pages = keys, .rows_per_page = kRowsPerPage, .num_rows = num_rows, .width = kIndexerDim}};
      const ops::AttentionSequence attended = {
          .token_begin = 0,
          .num_tokens = tokens,
          .first_position = first,
          .window = {.data = ring.view.data, .capacity = kWindow + tokens, .width = kDim},
          .entries = {.pages = entries, .rows_per_page = kRowsPerPage, .num_rows = num_rows, .width = kDim}};
      const auto select = [&] {
        const Status status =
            device.table().indexer_select(device.context(), {.q = indexer_q.view,
                                                             .weights = head_weights.view,
                                                             .selected = selected.view,
                                                             .ratio = 4,
                                                             .sequences = std::span(&indexed, 1)});
        EXPECT_TRUE(status.ok()) << status.ToString();
      };
      const auto attend = [&] {
        const Status status =
            device.table().attention(device.context(), {.q = q.view,
                                                        .sink = sink.view,
                                                        .selected = selected.view,
                                                        .o = o.view,
                                                        .softmax_scale = 0.0442F,
                                                        .window_size = kWindow,
                                                        .ratio = 4,
                                                        .sequences = std::span(&attended, 1)});
        EXPECT_TRUE(status.ok()) << status.ToString();
      };
      const std::string what =
          "position " + std::to_string(first) + ", " + std::to_string(tokens) + " tokens";
      device.Bytes(selected.view);  // Hands what is queued to the device.
      int64_t begin = device.launches();
      select();
      device.Bytes(selected.view);
      attend();
      const std::vector<std::byte> apart = device.Bytes(o.view);
      const int64_t launches_apart = device.launches() - begin;
      const std::vector<std::byte> other(apart.size(), std::byte{0x5A});
      ASSERT_TRUE(device.memory().CopyFromHost(o.view.data, other.data(), other.size(), nullptr).ok());
      device.Bytes(selected.view);
      begin = device.launches();
      select();
      attend();
      EXPECT_EQ(device.Bytes(o.view) == apart, true) << what;
      EXPECT_EQ(device.launches() - begin, launches_apart - 1) << what;
    }
  }
}

TEST(CudaFused, SwigluAndRouter) {
  constexpr int64_t kExperts = 256;
  constexpr int64_t kTopK = 6;
  for (const int64_t width : {int64_t{2048}, int64_t{130}}) {
    for (const int64_t tokens : {int64_t{1}, int64_t{8}}) {
      Device device;
      const DeviceTensor gate =
          device.Copy(DType::kBF16, {tokens, width}, Bf16s(Normals(tokens * width, 1, 4.0F)));
      const DeviceTensor up =
          device.Copy(DType::kBF16, {tokens, width}, Bf16s(Normals(tokens * width, 2, 4.0F)));
      const DeviceTensor logits = device.Copy(DType::kF32, {tokens, kExperts}, Normals(tokens * kExperts, 3));
      const DeviceTensor bias = device.Copy(DType::kF32, {kExperts}, Normals(kExperts, 4, 0.1F));
      const DeviceTensor indices = device.New(DType::kI32, {tokens, kTopK});
      const DeviceTensor weights = device.New(DType::kF32, {tokens, kTopK});
      ExpectOneLaunch(
          device, "width " + std::to_string(width) + ", " + std::to_string(tokens) + " tokens",
          [&] {
            return device.table().swiglu(
                device.context(),
                {.gate = gate.view, .up = up.view, .row_weights = {}, .y = gate.view, .limit = 10.0F});
          },
          [&] {
            return device.table().router(device.context(), {.logits = logits.view,
                                                            .bias = bias.view,
                                                            .hash_table = {},
                                                            .token_ids = {},
                                                            .indices = indices.view,
                                                            .weights = weights.view,
                                                            .route_scale = 2.5F});
          },
          {&gate, &indices, &weights});
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
