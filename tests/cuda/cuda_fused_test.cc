// Ops that run as one launch when they follow each other: the results are those of each alone.
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/one_launch.h"

namespace dsv4::testing {
namespace {

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
          {&o}, OneLaunch::kOnHopper);
    }
  }
}

// Attention reads the indexer's lists as they are where it is told that they are in order.
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
      const auto attend = [&](bool ordered) {
        const Status status =
            device.table().attention(device.context(), {.q = q.view,
                                                        .sink = sink.view,
                                                        .selected = selected.view,
                                                        .o = o.view,
                                                        .softmax_scale = 0.0442F,
                                                        .window_size = kWindow,
                                                        .ratio = 4,
                                                        .sequences = std::span(&attended, 1),
                                                        .ordered = ordered});
        EXPECT_TRUE(status.ok()) << status.ToString();
      };
      const std::string what =
          "position " + std::to_string(first) + ", " + std::to_string(tokens) + " tokens";
      device.Bytes(selected.view);  // Hands what is queued to the device.
      select();
      device.Bytes(selected.view);
      int64_t begin = device.launches();
      attend(false);
      const std::vector<std::byte> sorted = device.Bytes(o.view);
      const int64_t launches_sorted = device.launches() - begin;
      // Also where others come between, as in layers that share a choice.
      for (int i = 0; i < 2; ++i) {
        const std::vector<std::byte> other(sorted.size(), std::byte{0x5A});
        ASSERT_TRUE(device.memory().CopyFromHost(o.view.data, other.data(), other.size(), nullptr).ok());
        device.Bytes(selected.view);
        begin = device.launches();
        attend(true);
        EXPECT_EQ(device.Bytes(o.view) == sorted, true) << what;
        EXPECT_EQ(device.launches() - begin, launches_sorted - 1) << what;
      }
    }
  }
}

// Norm, rotation, rounding and storing of a row, as the keys of a layer take them; rows of one block's width
// and of several.
TEST(CudaFused, StepsOfARow) {
  constexpr int64_t kFrequencies = 32;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t width : {int64_t{512}, int64_t{1024}, int64_t{4096}, int64_t{4480}, int64_t{324}}) {
      for (const int64_t rows : {int64_t{1}, int64_t{3}}) {
        Device device;
        const std::vector<float> values = Normals(rows * width, 1);
        const DeviceTensor x = dtype == DType::kBF16 ? device.Copy(dtype, {rows, width}, Bf16s(values))
                                                     : device.Copy(dtype, {rows, width}, values);
        const DeviceTensor weight = device.Copy(DType::kF32, {width}, Normals(width, 2));
        const DeviceTensor y = device.New(dtype, {rows, width});
        const DeviceTensor kept = device.New(dtype, {rows + 1, width});
        const DeviceTensor positions =
            device.Copy(DType::kI32, {rows}, std::vector<int32_t>(static_cast<size_t>(rows), 1'000'003));
        const DeviceTensor frequencies = device.Copy(DType::kF32, {kFrequencies}, Normals(kFrequencies, 3));
        const TensorView heads =
            TensorView::Contiguous(y.view.data, dtype, {rows, 1, width}, device.memory().device());
        // The last row lies apart from the others.
        std::vector<RowRun> runs = {
            {.source_begin = 0, .num_rows = rows - 1, .destination = kept.view.data},
            {.source_begin = rows - 1,
             .num_rows = 1,
             .destination = kept.view.as<std::byte>() + rows * width * ElementBytes(dtype)}};
        if (rows == 1) runs.erase(runs.begin());
        ExpectOneLaunch(
            device,
            std::to_string(rows) + " rows of " + std::to_string(width) +
                (dtype == DType::kBF16 ? ", bf16" : ", fp32"),
            [&] {
              return device.table().rms_norm(device.context(),
                                             {.x = x.view, .weight = weight.view, .y = y.view, .eps = 1e-6F});
            },
            [&] {
              Status status = device.table().rope(device.context(), {.x = heads,
                                                                     .positions = positions.view,
                                                                     .frequencies = frequencies.view,
                                                                     .inverse = false});
              if (status.ok() && width % 64 == 0) {
                status = device.table().simulate_fp8(device.context(),
                                                     {.x = y.view, .num_columns = width - 64, .group = 64});
              }
              if (status.ok())
                status = device.table().store_rows(device.context(), {.source = y.view, .runs = runs});
              return status;
            },
            {&y, &kept});
      }
    }
  }
}

// Heads' queries and the indexer's, as a layer takes them.
TEST(CudaFused, StepsOfHeads) {
  constexpr int64_t kFrequencies = 32;
  for (const int64_t width : {int64_t{512}, int64_t{128}}) {
    for (const int64_t heads : {int64_t{5}, int64_t{64}}) {
      Device device;
      const DeviceTensor x =
          device.Copy(DType::kBF16, {2, heads, width}, Bf16s(Normals(2 * heads * width, 1)));
      const DeviceTensor positions = device.Copy(DType::kI32, {2}, std::vector<int32_t>{3, 70'001});
      const DeviceTensor frequencies = device.Copy(DType::kF32, {kFrequencies}, Normals(kFrequencies, 2));
      const auto rope = [&] {
        return device.table().rope(
            device.context(),
            {.x = x.view, .positions = positions.view, .frequencies = frequencies.view, .inverse = false});
      };
      const TensorView rows = x.view.Reshaped({2 * heads, width});
      const std::string what = std::to_string(heads) + " heads of " + std::to_string(width);
      if (width == 128) {
        ExpectOneLaunch(device, what, rope,
                        [&] { return device.table().hadamard_fp4(device.context(), {.x = rows}); }, {&x});
      } else {
        ExpectOneLaunch(device, what,
                        [&] {
                          return device.table().head_rms_norm(device.context(),
                                                              {.x = x.view, .y = x.view, .eps = 1e-6F});
                        },
                        rope, {&x});
      }
    }
  }
}

// A token that completes an entry of four: pooled, normed, rotated, rounded and stored beside the rings' new
// rows.
TEST(CudaFused, AnEntryAndItsRow) {
  constexpr int64_t kRatio = 4;
  constexpr int64_t kFrequencies = 32;
  for (const int64_t width : {int64_t{512}, int64_t{128}}) {
    Device device;
    const int64_t row = 2 * width;
    const int64_t capacity = 2 * kRatio;
    const DeviceTensor values = device.Copy(DType::kF32, {1, row}, Normals(row, 1));
    const DeviceTensor scores = device.Copy(DType::kF32, {1, row}, Normals(row, 2, 3.0F));
    const DeviceTensor ape = device.Copy(DType::kF32, {kRatio, row}, Normals(kRatio * row, 3));
    const DeviceTensor value_ring = device.Copy(DType::kF32, {capacity, row}, Normals(capacity * row, 4));
    const DeviceTensor score_ring =
        device.Copy(DType::kF32, {capacity, row}, Normals(capacity * row, 5, 3.0F));
    const DeviceTensor pooled = device.New(DType::kBF16, {1, width});
    const DeviceTensor kept = device.New(DType::kBF16, {2, width});
    const DeviceTensor weight = device.Copy(DType::kF32, {width}, Normals(width, 6));
    const DeviceTensor positions = device.Copy(DType::kI32, {1}, std::vector<int32_t>{20});
    const DeviceTensor frequencies = device.Copy(DType::kF32, {kFrequencies}, Normals(kFrequencies, 7));
    const ops::CompressorSequence sequence = {
        .token_begin = 0,
        .num_tokens = 1,
        .first_position = 23,
        .value_history = {.data = value_ring.view.data,
                          .capacity = capacity,
                          .width = row,
                          .format = DType::kF32},
        .score_history = {
            .data = score_ring.view.data, .capacity = capacity, .width = row, .format = DType::kF32}};
    const RowRun run = {.source_begin = 0, .num_rows = 1, .destination = kept.view.data};
    ExpectOneLaunch(
        device, "width " + std::to_string(width),
        [&] {
          return device.table().compressor_pool(device.context(), {.values = values.view,
                                                                   .scores = scores.view,
                                                                   .ape = ape.view,
                                                                   .pooled = pooled.view,
                                                                   .ratio = kRatio,
                                                                   .overlap = true,
                                                                   .sequences = std::span(&sequence, 1)});
        },
        [&] {
          Status status = device.table().rms_norm(
              device.context(), {.x = pooled.view, .weight = weight.view, .y = pooled.view, .eps = 1e-6F});
          if (status.ok()) {
            status = device.table().rope(device.context(), {.x = pooled.view.Reshaped({1, 1, width}),
                                                            .positions = positions.view,
                                                            .frequencies = frequencies.view,
                                                            .inverse = false});
          }
          if (status.ok()) {
            status = width == 128 ? device.table().hadamard_fp4(device.context(), {.x = pooled.view})
                                  : device.table().simulate_fp8(
                                        device.context(), {.x = pooled.view, .num_columns = width - 64});
          }
          if (status.ok()) {
            status = device.table().store_rows(device.context(),
                                               {.source = pooled.view, .runs = std::span(&run, 1)});
          }
          return status;
        },
        {&pooled, &kept, &value_ring, &score_ring});
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

// The shared expert's down behind the routed experts.
TEST(CudaFused, RoutedExpertsAndALinear) {
  constexpr int64_t kTopK = 6;
  constexpr int64_t kExperts = 12;
  constexpr int64_t kDifferent = 4;
  struct Rows {
    int64_t cols;  // Columns of the linear.
    int64_t tokens;
  };
  struct Matrices {
    int64_t dim;
    int64_t width;
    std::vector<Rows> rows;
  };
  // More tiles than SMs, and fewer; one token, and rows of a sequence. Matrices are made once: that takes
  // longer than all else.
  const std::vector<Matrices> shapes = {{4096, 2048, {{2048, 1}, {2048, 2}, {2048, 6}, {2048, 8}, {512, 3}}},
                                        {384, 256, {{1152, 1}, {1152, 5}}}};
  for (const Matrices& matrices : shapes) {
    const int64_t dim = matrices.dim;
    for (const Format format : {Format::kNvFp4, Format::kMxFp4, Format::kFineMxFp4}) {
      Device device;
      const std::vector<ops::ExpertWeights> experts =
          RandomExperts(device, format, kExperts, dim, matrices.width, kDifferent);
      for (const auto& [cols, tokens] : matrices.rows) {
        const DeviceTensor x = device.Copy(DType::kBF16, {tokens, dim}, Bf16s(Normals(tokens * dim, 1)));
        const DeviceTensor hidden =
            device.Copy(DType::kBF16, {tokens, cols}, Bf16s(Normals(tokens * cols, 2)));
        std::vector<int32_t> chosen = {7, 2, 11, 0, 2, 5};
        while (std::ssize(chosen) < tokens * kTopK)
          chosen.push_back((chosen[chosen.size() - kTopK] + 5) % static_cast<int32_t>(kExperts));
        const DeviceTensor indices = device.Copy(DType::kI32, {tokens, kTopK}, chosen);
        const DeviceTensor routing =
            device.Copy(DType::kF32, {tokens, kTopK}, Normals(tokens * kTopK, 3, 0.3F));
        const DeviceTensor routed = device.New(DType::kF32, {tokens, dim});
        for (const Format of_linear : {Format::kFp8, Format::kMxFp8, format}) {
          const Weight weight = RandomWeight(device, of_linear, dim, cols, 80);
          for (const DType dtype : {DType::kBF16, DType::kF32}) {
            const DeviceTensor shared = device.New(dtype, {tokens, dim});
            ExpectOneLaunch(
                device,
                FormatText(format) + ", " + FormatText(of_linear) + ", dim " + std::to_string(dim) +
                    ", tokens " + std::to_string(tokens),
                [&] {
                  return device.table().routed_experts(device.context(), {.x = x.view,
                                                                          .indices = indices.view,
                                                                          .weights = routing.view,
                                                                          .experts = experts,
                                                                          .limit = 7.0F,
                                                                          .y = routed.view});
                },
                [&] {
                  return device.table().linear(device.context(),
                                               {.x = hidden.view, .weight = &weight, .y = shared.view});
                },
                {&routed, &shared}, OneLaunch::kOnHopper);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
