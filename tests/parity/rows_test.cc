// Ops that treat rows or elements one by one: rms_norm, head_rms_norm, scale, swiglu, moe_combine, embed,
// store_rows, gather_rows, sum_rows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "formats/number_formats.h"
#include "tests/parity/backends.h"
#include "tests/parity/cached_rows.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

constexpr DType kActivations[] = {DType::kBF16, DType::kF32};

struct RowCase {
  int64_t num_rows;
  int64_t dim;
  int64_t row_gap;
};
// 0, 1, around the release's tile of 128, real widths.
constexpr RowCase kRowCases[] = {{0, 64, 0},   {1, 1, 0},     {1, 7, 3},    {3, 127, 1},
                                 {17, 128, 0}, {129, 129, 5}, {2, 4096, 0}, {1, 7168, 64}};

TEST(RmsNormParity, AgainstTheFormula) {
  for (const DType dtype : kActivations) {
    for (const RowCase& c : kRowCases) {
      for (const uint32_t seed : {1U, 2U}) {
        Random random(seed);
        const std::vector<double> x = Rounded(
            dtype, seed == 1 ? random.Normals(c.num_rows * c.dim, 3.0) : random.Spread(c.num_rows * c.dim));
        const std::vector<double> weight = Rounded(DType::kF32, random.Normals(c.dim));
        const TestTensor x_tensor(dtype, {c.num_rows, c.dim}, x, c.row_gap);
        const TestTensor weight_tensor(DType::kF32, {c.dim}, weight);
        const float eps = 1e-6F;
        const auto outputs = RunOnAll([&](const ops::Backend& backend) {
          TestTensor y(dtype, {c.num_rows, c.dim}, c.row_gap);
          const Status status = backend.table.rms_norm(*backend.context, {x_tensor, weight_tensor, y, eps});
          EXPECT_TRUE(status.ok()) << status.ToString();
          return Outputs(std::move(y));
        });
        std::vector<double> want(x.size());
        for (size_t row = 0; row < static_cast<size_t>(c.num_rows); ++row) {
          const size_t dim = static_cast<size_t>(c.dim);
          long double sum = 0;
          for (size_t i = 0; i < dim; ++i)
            sum += static_cast<long double>(x[row * dim + i]) * static_cast<long double>(x[row * dim + i]);
          const long double root =
              std::sqrt(sum / static_cast<long double>(dim) + static_cast<long double>(eps));
          for (size_t i = 0; i < dim; ++i)
            want[row * dim + i] =
                static_cast<double>(static_cast<long double>(x[row * dim + i] * weight[i]) / root);
        }
        ExpectRounded(dtype, outputs[0].Values(), want, {}, "rms_norm");
      }
    }
  }
}

TEST(RmsNormParity, InPlaceAndMixedDtypes) {
  Random random(3);
  const std::vector<double> x = random.Normals(4 * 32);
  const TestTensor weight(DType::kF32, {32}, random.Normals(32));
  TestTensor apart(DType::kBF16, {4, 32});
  TestTensor in_place(DType::kBF16, {4, 32}, x);
  const ops::Backend& backend = Reference();
  ASSERT_TRUE(backend.table.rms_norm(*backend.context, {in_place, weight, apart, 1e-6F}).ok());
  TestTensor wide(DType::kF32, {4, 32});
  ASSERT_TRUE(backend.table.rms_norm(*backend.context, {in_place, weight, wide, 1e-6F}).ok());
  ASSERT_TRUE(backend.table.rms_norm(*backend.context, {in_place, weight, in_place, 1e-6F}).ok());
  EXPECT_EQ(in_place.Bytes(), apart.Bytes());
  EXPECT_EQ(Rounded(DType::kBF16, wide.Values()), apart.Values());
}

TEST(HeadRmsNormParity, F32AgainstTheFormulaBf16WithEveryRounding) {
  const auto bf16 = [](double value) { return static_cast<double>(RoundToBf16(static_cast<float>(value))); };
  for (const int64_t num_heads : {1, 3, 64}) {
    for (const int64_t head_dim : {1, 64, 127, 512}) {
      for (const DType dtype : kActivations) {
        Random random(static_cast<uint32_t>(num_heads * head_dim));
        const int64_t num_tokens = 3;
        const int64_t count = num_tokens * num_heads * head_dim;
        const std::vector<double> x = Rounded(dtype, random.Normals(count, 2.0));
        const TestTensor x_tensor(dtype, {num_tokens, num_heads, head_dim}, x);
        const auto outputs = RunOnAll([&](const ops::Backend& backend) {
          TestTensor y(dtype, {num_tokens, num_heads, head_dim});
          EXPECT_TRUE(backend.table.head_rms_norm(*backend.context, {x_tensor, y, 1e-6F}).ok());
          return Outputs(std::move(y));
        });
        std::vector<double> want(x.size());
        const size_t dim = static_cast<size_t>(head_dim);
        for (size_t begin = 0; begin < x.size(); begin += dim) {
          double sum = 0;
          for (size_t i = begin; i < begin + dim; ++i)
            sum += dtype == DType::kBF16 ? bf16(x[i] * x[i]) : x[i] * x[i];
          const double eps = static_cast<double>(1e-6F);
          if (dtype == DType::kBF16) {
            const double factor = bf16(1.0 / std::sqrt(bf16(bf16(sum / static_cast<double>(dim)) + eps)));
            for (size_t i = begin; i < begin + dim; ++i) want[i] = bf16(x[i] * factor);
          } else {
            for (size_t i = begin; i < begin + dim; ++i)
              want[i] = x[i] / std::sqrt(sum / static_cast<double>(dim) + eps);
          }
        }
        if (dtype == DType::kBF16) {
          EXPECT_EQ(outputs[0].Values(), want);
        } else {
          ExpectRounded(dtype, outputs[0].Values(), want, {}, "head_rms_norm");
        }
      }
    }
  }
}

TEST(ScaleParity, OneFp32ProductRoundedOnce) {
  Random random(5);
  const float factor = 0.011048543456F;
  for (const DType dtype : kActivations) {
    const std::vector<double> x = Rounded(dtype, random.Spread(3 * 65));
    const TestTensor x_tensor(dtype, {3, 65}, x);
    const auto outputs = RunOnAll([&](const ops::Backend& backend) {
      TestTensor y(dtype, {3, 65});
      EXPECT_TRUE(backend.table.scale(*backend.context, {x_tensor, y, factor}).ok());
      return Outputs(std::move(y));
    });
    std::vector<double> want;
    for (const double value : x) want.push_back(static_cast<double>(static_cast<float>(value) * factor));
    EXPECT_EQ(outputs[0].Values(), Rounded(dtype, want));
  }
}

TEST(SwigluParity, AgainstTheFormulaWithAndWithoutClamp) {
  for (const DType dtype : kActivations) {
    for (const float limit : {0.7F, 10.0F, std::numeric_limits<float>::infinity()}) {
      for (const bool weighted : {false, true}) {
        for (const RowCase& c : kRowCases) {
          Random random(9);
          const std::vector<double> gate = Rounded(dtype, random.Normals(c.num_rows * c.dim, 8.0));
          const std::vector<double> up = Rounded(dtype, random.Normals(c.num_rows * c.dim, 8.0));
          const std::vector<double> weights = Rounded(DType::kF32, random.Normals(c.num_rows));
          const TestTensor gate_tensor(dtype, {c.num_rows, c.dim}, gate);
          const TestTensor up_tensor(dtype, {c.num_rows, c.dim}, up);
          const TestTensor weights_tensor(DType::kF32, {c.num_rows}, weights);
          const auto outputs = RunOnAll([&](const ops::Backend& backend) {
            TestTensor y(dtype, {c.num_rows, c.dim});
            const ops::SwigluArgs args{gate_tensor, up_tensor,
                                       weighted ? weights_tensor.view() : TensorView(), y, limit};
            EXPECT_TRUE(backend.table.swiglu(*backend.context, args).ok());
            return Outputs(std::move(y));
          });
          std::vector<double> want(gate.size());
          for (size_t i = 0; i < want.size(); ++i) {
            const double bound = static_cast<double>(limit);
            const double g = gate[i] > bound ? bound : gate[i];
            const double u = up[i] > bound ? bound : (up[i] < -bound ? -bound : up[i]);
            want[i] =
                g / (1.0 + std::exp(-g)) * u * (weighted ? weights[i / static_cast<size_t>(c.dim)] : 1.0);
          }
          ExpectRounded(dtype, outputs[0].Values(), want, {}, "swiglu");
        }
      }
    }
  }
}

TEST(SwigluParity, OutputMayBeGateOrUp) {
  Random random(10);
  const std::vector<double> gate = random.Normals(64);
  const std::vector<double> up = random.Normals(64);
  const ops::Backend& backend = Reference();
  const auto run = [&](int alias) {
    TestTensor g(DType::kBF16, {2, 32}, gate);
    TestTensor u(DType::kBF16, {2, 32}, up);
    TestTensor y(DType::kBF16, {2, 32});
    TestTensor& out = alias == 0 ? y : (alias == 1 ? g : u);
    EXPECT_TRUE(backend.table.swiglu(*backend.context, {g, u, {}, out, 10.0F}).ok());
    return out.Values();
  };
  EXPECT_EQ(run(1), run(0));
  EXPECT_EQ(run(2), run(0));
}

TEST(MoeCombineParity, RoundsTheFp32SumOnce) {
  for (const DType dtype : kActivations) {
    for (const RowCase& c : kRowCases) {
      for (const bool alone : {false, true}) {
        Random random(11);
        const std::vector<double> routed = Rounded(DType::kF32, random.Spread(c.num_rows * c.dim));
        const std::vector<double> shared = Rounded(dtype, random.Spread(c.num_rows * c.dim));
        const TestTensor routed_tensor(DType::kF32, {c.num_rows, c.dim}, routed);
        const TestTensor shared_tensor(dtype, {c.num_rows, c.dim}, shared);
        const auto outputs = RunOnAll([&](const ops::Backend& backend) {
          TestTensor y(dtype, {c.num_rows, c.dim});
          ops::MoeCombineArgs args{.routed = routed_tensor, .shared = {}, .y = y};
          if (!alone) args.shared = shared_tensor;
          EXPECT_TRUE(backend.table.moe_combine(*backend.context, args).ok());
          return Outputs(std::move(y));
        });
        std::vector<double> want;
        for (size_t i = 0; i < routed.size(); ++i) {
          const float other = alone ? 0.0F : static_cast<float>(shared[i]);
          want.push_back(static_cast<double>(static_cast<float>(routed[i]) + other));
        }
        EXPECT_EQ(outputs[0].Values(), Rounded(dtype, want));
      }
    }
  }
}

TEST(EmbedParity, CopiesTheRowToEveryStream) {
  for (const DType table_dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType dtype : kActivations) {
      for (const int64_t num_tokens : {0, 1, 5}) {
        Random random(12);
        const std::vector<double> table = Rounded(table_dtype, random.Normals(9 * 20));
        const std::vector<double> ids = {8, 0, 3, 3, 1};
        const TestTensor table_tensor(table_dtype, {9, 20}, table);
        const TestTensor id_tensor(DType::kI32, {num_tokens},
                                   std::span(ids).first(static_cast<size_t>(num_tokens)));
        const auto outputs = RunOnAll([&](const ops::Backend& backend) {
          TestTensor streams(dtype, {num_tokens, 4, 20});
          EXPECT_TRUE(backend.table.embed(*backend.context, {id_tensor, table_tensor, streams}).ok());
          return Outputs(std::move(streams));
        });
        std::vector<double> want;
        for (size_t t = 0; t < static_cast<size_t>(num_tokens); ++t) {
          for (int copy = 0; copy < 4; ++copy) {
            const auto row = table.begin() + static_cast<int64_t>(ids[t]) * 20;
            want.insert(want.end(), row, row + 20);
          }
        }
        EXPECT_EQ(outputs[0].Values(), Rounded(dtype, want));
      }
    }
  }
}

TEST(EmbedParity, AnIdOutsideTheTableIsNamed) {
  const TestTensor table(DType::kBF16, {9, 4}, std::vector<double>(36, 1.0));
  for (const double bad : {-1.0, 9.0}) {
    const TestTensor ids(DType::kI32, {2}, std::vector<double>{0, bad});
    TestTensor streams(DType::kBF16, {2, 1, 4});
    const Status status = Reference().table.embed(*Reference().context, {ids, table, streams});
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_NE(status.message().find("token_ids[1]: " + std::to_string(static_cast<int>(bad))),
              std::string::npos)
        << status.message();
  }
}

TEST(StoreRowsParity, EveryRunGoesWhereItShould) {
  Random random(13);
  const std::vector<double> source = Rounded(DType::kBF16, random.Normals(10 * 6));
  const TestTensor source_tensor(DType::kBF16, {10, 6}, source);
  const auto outputs = RunOnAll([&](const ops::Backend& backend) {
    TestTensor ring(DType::kBF16, {8, 6}, std::vector<double>(48, -7.0));
    TestTensor page(DType::kBF16, {4, 6}, std::vector<double>(24, -7.0));
    const auto at = [](const TestTensor& tensor, int64_t row) {
      return static_cast<void*>(tensor.view().as<uint16_t>() + row * 6);
    };
    const std::vector<ops::RowRun> runs = {
        {7, 3, at(page, 1)}, {0, 2, at(ring, 6)}, {2, 3, at(ring, 0)}, {5, 0, nullptr}};
    EXPECT_TRUE(backend.table.store_rows(*backend.context, {source_tensor, runs}).ok());
    return Outputs(std::move(ring), std::move(page));
  });
  const auto row = [&](size_t i) {
    return std::vector<double>(source.begin() + static_cast<int64_t>(i) * 6,
                               source.begin() + static_cast<int64_t>(i + 1) * 6);
  };
  const auto got = [&](const TestTensor& tensor, size_t i) {
    const std::vector<double> values = tensor.Values();
    return std::vector<double>(values.begin() + static_cast<int64_t>(i) * 6,
                               values.begin() + static_cast<int64_t>(i + 1) * 6);
  };
  const std::vector<double> untouched(6, -7.0);
  EXPECT_EQ(got(outputs[0], 6), row(0));
  EXPECT_EQ(got(outputs[0], 7), row(1));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(got(outputs[0], i), row(2 + i));
  for (size_t i = 3; i < 6; ++i) EXPECT_EQ(got(outputs[0], i), untouched);
  EXPECT_EQ(got(outputs[1], 0), untouched);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(got(outputs[1], 1 + i), row(7 + i));
}

TEST(GatherRowsParity, SequencesOneBehindTheOther) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t width : {1, 6, 512}) {
      Random random(17);
      std::vector<double> want;
      std::vector<std::unique_ptr<TestPages>> pages;
      std::vector<PagedRows> sources;
      for (const int64_t num_rows : {7, 0, 5, 131, 1}) {  // Pages of five.
        const std::vector<double> rows = Rounded(dtype, random.Normals(num_rows * width));
        want.insert(want.end(), rows.begin(), rows.end());
        pages.push_back(std::make_unique<TestPages>(dtype, width, 5, rows));
        sources.push_back(pages.back()->rows());
      }
      const auto outputs = RunOnAll(
          [&](const ops::Backend& backend) {
            TestTensor rows(dtype, {7 + 5 + 131 + 1, width});
            const Status status = backend.table.gather_rows(*backend.context, {sources, rows});
            EXPECT_TRUE(status.ok()) << status.ToString();
            return Outputs(std::move(rows));
          },
          FastOutputs::kSameBits, OpsUsed::kOfShards);
      EXPECT_EQ(outputs[0].Values(), want) << DTypeName(dtype) << ", rows of " << width;
    }
  }
}

// Every row is added once, to its target, in the order given; fp32 additions in that order have one result.
TEST(SumRowsParity, InOrderByTarget) {
  struct Case {
    int64_t num_targets;
    int64_t dim;
    std::vector<int32_t> targets;
  };
  std::vector<int32_t> many;
  for (int32_t i = 0; i < 300; ++i) many.push_back(i * 7 % 50);
  for (const Case& c : {Case{0, 5, {}}, Case{3, 4, {}}, Case{1, 1, {0}}, Case{1, 4096, {0, 0, 0, 0, 0, 0}},
                        Case{4, 255, {3, 0, 3, 1, 3, 0}}, Case{60, 257, many}}) {
    Random random(11);
    const auto num_rows = static_cast<int64_t>(c.targets.size());
    const std::vector<double> rows = Rounded(DType::kF32, random.Spread(num_rows * c.dim));
    const TestTensor rows_tensor(DType::kF32, {num_rows, c.dim}, rows);
    const auto outputs = RunOnAll(
        [&](const ops::Backend& backend) {
          TestTensor out(DType::kF32, {c.num_targets, c.dim});
          const Status status = backend.table.sum_rows(*backend.context, {rows_tensor, c.targets, out});
          EXPECT_TRUE(status.ok()) << status.ToString();
          return Outputs(std::move(out));
        },
        FastOutputs::kSameBits, OpsUsed::kOfShards);
    std::vector<double> want(static_cast<size_t>(c.num_targets * c.dim), 0.0);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = i / static_cast<size_t>(c.dim);
      double& sum = want[static_cast<size_t>(c.targets[row]) * static_cast<size_t>(c.dim) +
                         i % static_cast<size_t>(c.dim)];
      sum = static_cast<double>(static_cast<float>(sum) + static_cast<float>(rows[i]));
    }
    EXPECT_EQ(outputs[0].Values(), want) << c.num_targets << " targets of " << c.dim;
  }
}

}  // namespace
}  // namespace dsv4::test
