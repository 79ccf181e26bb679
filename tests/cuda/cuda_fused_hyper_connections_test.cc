// Hyper-connections, the ops in front of them and the norm behind. They are one launch for few tokens and two
// for more, with the results of each op alone.
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

// Tensor that moe_combine, if it is there, adds to the routed experts' sum.
enum class Combining { kNone, kShared, kNothing };

// Ops between two sub-layers of a few tokens, or of up to 256, the next one's first linear included. They
// have the bits of the ops one by one, and of the kernels for more tokens. For a few tokens it is one launch,
// for more two, and those of the linear.
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
    const int64_t apart = device.launches() - launches;
    run(cut, false);
    const auto together = all(cut);
    if (device.runs_hopper_code()) {
      EXPECT_EQ(device.launches() - launches, (tokens <= 8 ? 1 : 2) + of_linear) << what;
    } else {
      EXPECT_LE(device.launches() - launches, apart) << what;
    }
    for (size_t i = 0; i < written.size(); ++i) {
      EXPECT_EQ(together[i] == alone[i], true) << what << ", together, " << names[i];
      EXPECT_EQ(alone[i] == of_many[i], true) << what << ", of many, " << names[i];
    }
    // A list that comes again is the same list: captured the second time, replayed from then on. Twice, since
    // short ones never are.
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
  // Clusters of 4 blocks, and of 16 with few runs of columns, with eight, and with as many as the largest
  // release has.
  for (const int64_t dim : {int64_t{256}, int64_t{1024}, int64_t{1536}, int64_t{4096}, int64_t{7168}}) {
    ExpectHyperConnectionsTogether(dim, Combining::kNone, false, kFew);
    ExpectHyperConnectionsTogether(dim, Combining::kShared, true, kFew);
  }
  ExpectHyperConnectionsTogether(4096, Combining::kShared, false, kFew);
  ExpectHyperConnectionsTogether(4096, Combining::kNothing, true, kFew);
}

TEST(CudaFused, HyperConnectionsOfSomeTensOfTokens) {
  constexpr int64_t kTens[] = {9, 32, 33, 64};
  // Groups of eight that are full or not, that have a block each or share some. Widths have four parts and
  // sixteen, an even number of runs and an odd one.
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

}  // namespace
}  // namespace dsv4::testing
