// Ops that run as one launch when they follow each other: the results are those of each alone.
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/one_launch.h"

namespace dsv4::testing {
namespace {

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

// What moe_combine, if it is there, adds to the routed experts' sum.
enum class Combining { kNone, kShared, kNothing };

// What stands between two sub-layers of a few tokens, or of some tens, the next one's first linear included: bits of the ops one by one,
// and of the kernels for more tokens. Of a few it is one launch, of more two, and those of the linear.
void ExpectHyperConnectionsTogether(int64_t dim, Combining combining, bool post_in_place,
                                    std::span<const int64_t> token_counts) {
  constexpr int64_t kMult = 4;
  constexpr int64_t kMixRows = (2 + kMult) * kMult;
  constexpr int64_t kTokens = 261;  // More than either takes.
  constexpr int64_t kLinearRows = 64;
  Device device;
  const DeviceTensor routed = device.Copy(DType::kF32, {kTokens, dim}, Normals(kTokens * dim, 1));
  const DeviceTensor y = device.Copy(DType::kBF16, {kTokens, dim}, Bf16s(Normals(kTokens * dim, 2)));
  const DeviceTensor streams =
      device.Copy(DType::kBF16, {kTokens, kMult, dim}, Bf16s(Normals(kTokens * kMult * dim, 3)));
  const DeviceTensor post = device.Copy(DType::kF32, {kTokens, kMult}, Normals(kTokens * kMult, 4));
  const DeviceTensor comb =
      device.Copy(DType::kF32, {kTokens, kMult, kMult}, Normals(kTokens * kMult * kMult, 5, 0.4F));
  const DeviceTensor fn =
      device.Copy(DType::kF32, {kMixRows, kMult * dim}, Normals(kMixRows * kMult * dim, 6, 0.02F));
  const DeviceTensor scale = device.Copy(DType::kF32, {3}, Normals(3, 7));
  const DeviceTensor base = device.Copy(DType::kF32, {kMixRows}, Normals(kMixRows, 8));
  const DeviceTensor gains = device.Copy(DType::kF32, {dim}, Normals(dim, 9));
  const DeviceTensor u = device.New(DType::kBF16, {kTokens, dim});
  const DeviceTensor other_post = device.New(DType::kF32, {kTokens, kMult});
  const DeviceTensor other_comb = device.New(DType::kF32, {kTokens, kMult, kMult});
  const DeviceTensor& new_post = post_in_place ? post : other_post;
  const DeviceTensor& new_comb = post_in_place ? comb : other_comb;
  const Weight weight = RandomWeight(device, Format::kFp8, kLinearRows, dim, 10);
  const DeviceTensor product = device.New(DType::kBF16, {kTokens, kLinearRows});
  const std::vector<const DeviceTensor*> written = {&y, &streams,    &post,       &comb,
                                                    &u, &other_post, &other_comb, &product};
  const std::vector<std::string> names = {"y", "streams",    "post",       "comb",
                                          "u", "other post", "other comb", "product"};
  const auto all = [&](const Cut& cut) {
    std::vector<std::vector<std::byte>> bytes;
    for (const DeviceTensor* tensor : written) bytes.push_back(device.Bytes(Rows(tensor->view, cut)));
    return bytes;
  };
  const Cut whole = {0, kTokens};
  const auto before = all(whole);
  // One by one: somebody waits behind each. After it, the counters are those from before its ops.
  int64_t launches = 0;
  int64_t replayed_lists = 0;
  const auto run = [&](const Cut& cut, bool one_by_one, int times = 1) {
    for (size_t i = 0; i < written.size(); ++i) {
      const Status status =
          device.memory().CopyFromHost(written[i]->view.data, before[i].data(), before[i].size(), nullptr);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    device.Bytes(u.view);
    launches = device.launches();
    replayed_lists = device.replayed_lists();
    const auto rows = [&](const DeviceTensor& tensor) { return Rows(tensor.view, cut); };
    const ops::OpTable& table = device.table();
    ops::OpContext& context = device.context();
    const auto done = [&](const Status& status) {
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (one_by_one) device.Bytes(u.view);
    };
    for (int i = 0; i < times; ++i) {
      if (combining != Combining::kNone) {
        const TensorView shared = combining == Combining::kShared ? rows(y) : TensorView();
        done(table.moe_combine(context, {.routed = rows(routed), .shared = shared, .y = rows(y)}));
      }
      done(table.hc_post(context, {.y = rows(y),
                                   .residual = rows(streams),
                                   .post = rows(post),
                                   .comb = rows(comb),
                                   .out = rows(streams)}));
      done(table.hc_pre(context, {.streams = rows(streams),
                                  .fn = fn.view,
                                  .scale = scale.view,
                                  .base = base.view,
                                  .u = rows(u),
                                  .post = rows(new_post),
                                  .comb = rows(new_comb),
                                  .norm_eps = 1e-6F,
                                  .hc_eps = 1e-6F,
                                  .sinkhorn_iters = 20}));
      done(table.rms_norm(context, {.x = rows(u), .weight = gains.view, .y = rows(u), .eps = 1e-6F}));
      done(table.linear(context, {.x = rows(u), .weight = &weight, .y = rows(product)}));
    }
  };
  run(whole, false);
  const auto of_all = all(whole);
  for (const int64_t tokens : token_counts) {
    const std::string what = "dim " + std::to_string(dim) + ", " + std::to_string(tokens) + " tokens" +
                             ", combining " + std::to_string(static_cast<int>(combining)) +
                             (post_in_place ? ", in place" : "");
    const Cut cut = {0, tokens};
    auto of_many = of_all;
    for (std::vector<std::byte>& bytes : of_many)
      bytes.resize(bytes.size() / static_cast<size_t>(kTokens) * static_cast<size_t>(tokens));
    const int64_t before_linear = device.launches();
    const Status linear = device.table().linear(
        device.context(), {.x = Rows(u.view, cut), .weight = &weight, .y = Rows(product.view, cut)});
    ASSERT_TRUE(linear.ok()) << linear.ToString();
    device.Bytes(u.view);
    const int64_t of_linear = device.launches() - before_linear;
    run(cut, true);
    const auto alone = all(cut);
    run(cut, false);
    const auto together = all(cut);
    EXPECT_EQ(device.launches() - launches, (tokens <= 8 ? 1 : 2) + of_linear) << what;
    for (size_t i = 0; i < written.size(); ++i) {
      EXPECT_EQ(together[i] == alone[i], true) << what << ", together, " << names[i];
      EXPECT_EQ(alone[i] == of_many[i], true) << what << ", of many, " << names[i];
    }
    // A list that comes again is the same list: captured the second time, replayed from then on. Twice, since short ones never are.
    run(cut, false, 2);
    const auto twice = all(cut);
    for (int again = 0; again < 2; ++again) {
      run(cut, false, 2);
      EXPECT_EQ(all(cut) == twice, true) << what << ", again";
    }
    EXPECT_GT(device.replayed_lists(), replayed_lists) << what;
    EXPECT_NE(together[1],
              std::vector<std::byte>(before[1].begin(),
                                     before[1].begin() + static_cast<std::ptrdiff_t>(together[1].size())))
        << what;
  }
}

TEST(CudaFused, HyperConnectionsTheirNormAndALinear) {
  constexpr int64_t kFew[] = {1, 3, 8};
  // Clusters of 4 blocks, and of 16 with few runs of columns, with eight, and with as many as the largest release has.
  for (const int64_t dim : {int64_t{256}, int64_t{1024}, int64_t{1536}, int64_t{4096}, int64_t{7168}}) {
    ExpectHyperConnectionsTogether(dim, Combining::kNone, false, kFew);
    ExpectHyperConnectionsTogether(dim, Combining::kShared, true, kFew);
  }
  ExpectHyperConnectionsTogether(4096, Combining::kShared, false, kFew);
  ExpectHyperConnectionsTogether(4096, Combining::kNothing, true, kFew);
}

TEST(CudaFused, HyperConnectionsOfSomeTensOfTokens) {
  constexpr int64_t kTens[] = {9, 32, 33, 64};
  // Groups of eight that are full or not, that have a block each or share some; widths of four parts and of sixteen, of an even number of
  // runs and of an odd one.
  constexpr int64_t kMore[] = {12, 64, 150, 256};
  for (const int64_t dim : {int64_t{128}, int64_t{256}, int64_t{1024}, int64_t{1536}, int64_t{7168}}) {
    ExpectHyperConnectionsTogether(dim, Combining::kNone, false, kMore);
    ExpectHyperConnectionsTogether(dim, Combining::kShared, true, kMore);
  }
  ExpectHyperConnectionsTogether(7168, Combining::kNothing, true, kMore);
  for (const bool post_in_place : {false, true}) {
    ExpectHyperConnectionsTogether(4096, Combining::kNone, post_in_place, kTens);
    ExpectHyperConnectionsTogether(4096, Combining::kShared, post_in_place, kTens);
    ExpectHyperConnectionsTogether(4096, Combining::kNothing, post_in_place, kTens);
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

// Norm, rotation, rounding and storing of a row, as the keys of a layer take them; rows of one block's width and of several.
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

// A token that completes an entry of four: pooled, normed, rotated, rounded and stored beside the rings' new rows.
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
                          .dtype = DType::kF32},
        .score_history = {
            .data = score_ring.view.data, .capacity = capacity, .width = row, .dtype = DType::kF32}};
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
  struct ExpertShape {
    int64_t dim;
    int64_t width;
    int64_t cols;  // Of the linear.
  };
  // More tiles than processors, and fewer.
  for (const auto& [dim, width, cols] : {ExpertShape{4096, 2048, 2048}, ExpertShape{384, 256, 1152}}) {
    Device device;
    const DeviceTensor x = device.Copy(DType::kBF16, {1, dim}, Bf16s(Normals(dim, 1)));
    const DeviceTensor hidden = device.Copy(DType::kBF16, {1, cols}, Bf16s(Normals(cols, 2)));
    const DeviceTensor indices =
        device.Copy(DType::kI32, {1, kTopK}, std::vector<int32_t>{7, 2, 11, 0, 2, 5});
    const DeviceTensor routing = device.Copy(DType::kF32, {1, kTopK}, Normals(kTopK, 3, 0.3F));
    const DeviceTensor routed = device.New(DType::kF32, {1, dim});
    for (const Format format : {Format::kNvFp4, Format::kMxFp4}) {
      const std::vector<ops::ExpertWeights> experts =
          RandomExperts(device, format, kExperts, dim, width, kDifferent);
      for (const Format of_linear : {Format::kFp8, format}) {
        for (const DType dtype : {DType::kBF16, DType::kF32}) {
          const Weight weight = RandomWeight(device, of_linear, dim, cols, 80);
          const DeviceTensor shared = device.New(dtype, {1, dim});
          ExpectOneLaunch(
              device, FormatText(format) + ", " + FormatText(of_linear) + ", dim " + std::to_string(dim),
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
              {&routed, &shared});
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
