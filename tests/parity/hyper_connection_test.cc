// hc_pre, hc_post and hc_head against a second writing of model.md section 4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/parity/backends.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

using Matrix = std::vector<std::vector<double>>;

double Sigmoid(double x) { return 0.5 * (1.0 + std::tanh(0.5 * x)); }

// A number, and how far a device may be from it by its roundings.
struct Bounded {
  double value;
  double slack;
};

std::vector<Bounded> Logits(const std::vector<double>& x, const std::vector<double>& fn, double eps) {
  double square = 0;
  for (const double value : x) square += value * value / static_cast<double>(x.size());
  const double factor = 1.0 / std::sqrt(square + eps);
  std::vector<Bounded> m;
  for (size_t begin = 0; begin < fn.size(); begin += x.size()) {
    double sum = 0;
    double magnitude = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      sum += fn[begin + j] * x[j];
      magnitude += std::fabs(fn[begin + j] * x[j]);
    }
    m.push_back({sum * factor, 2 * magnitude * factor * SumDepth(static_cast<int64_t>(x.size())) * 0x1p-24});
  }
  return m;
}

// scale * m + base.
Bounded Scaled(const Bounded& m, double scale, double base) {
  const double value = m.value * scale + base;
  return {value, m.slack * std::fabs(scale) + 0x1p-22 * (std::fabs(m.value * scale) + std::fabs(base))};
}
Bounded Sigmoid(const Bounded& x) { return {Sigmoid(x.value), x.slack / 4 + 0x1p-22}; }

Matrix DoublyStochastic(Matrix c, double eps, int iterations) {
  const size_t n = c.size();
  const auto columns = [&] {
    for (size_t j = 0; j < n; ++j) {
      double sum = eps;
      for (size_t i = 0; i < n; ++i) sum += c[i][j];
      for (size_t i = 0; i < n; ++i) c[i][j] /= sum;
    }
  };
  for (std::vector<double>& row : c) {
    double sum = 0;
    for (double& value : row) sum += value = std::exp(value);
    for (double& value : row) value = value / sum + eps;
  }
  columns();
  for (int k = 0; k < iterations - 1; ++k) {
    for (std::vector<double>& row : c) {
      double sum = eps;
      for (const double value : row) sum += value;
      for (double& value : row) value /= sum;
    }
    columns();
  }
  return c;
}

struct HcCase {
  int64_t num_tokens;
  int64_t hc_mult;
  int64_t dim;
  int iterations;
};
const HcCase kCases[] = {{0, 4, 8, 20}, {1, 4, 1, 20},    {3, 4, 127, 20}, {129, 4, 16, 20}, {2, 1, 64, 1},
                         {2, 3, 33, 2}, {1, 4, 4096, 20}, {9, 4, 256, 20}, {33, 4, 1536, 20}};

struct HcInputs {
  std::vector<double> streams;
  std::vector<double> fn;
  std::vector<double> scale;
  std::vector<double> base;
};

HcInputs MakeInputs(const HcCase& c, DType dtype, bool head) {
  Random random(61);
  const int64_t mix = head ? c.hc_mult : (2 + c.hc_mult) * c.hc_mult;
  const int64_t width = c.hc_mult * c.dim;
  return {Rounded(dtype, random.Normals(c.num_tokens * width, 3.0)),
          Rounded(DType::kF32, random.Normals(mix * width, 1.0 / std::sqrt(static_cast<double>(width)))),
          Rounded(DType::kF32, random.Normals(head ? 1 : 3)), Rounded(DType::kF32, random.Normals(mix))};
}

TEST(HcPreParity, AgainstTheSpecification) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const HcCase& c : kCases) {
      const HcInputs in = MakeInputs(c, dtype, false);
      const int64_t mult = c.hc_mult;
      const int64_t mix = (2 + mult) * mult;
      const TestTensor streams(dtype, {c.num_tokens, mult, c.dim}, in.streams);
      const TestTensor fn(DType::kF32, {mix, mult * c.dim}, in.fn);
      const TestTensor scale(DType::kF32, {3}, in.scale);
      const TestTensor base(DType::kF32, {mix}, in.base);
      const auto outputs = RunOnAll(
          [&](const ops::Backend& backend) {
            TestTensor u(dtype, {c.num_tokens, c.dim});
            TestTensor post(DType::kF32, {c.num_tokens, mult});
            TestTensor comb(DType::kF32, {c.num_tokens, mult, mult});
            const Status status = backend.table.hc_pre(
                *backend.context, {streams, fn, scale, base, u, post, comb, 1e-6F, 1e-6F, c.iterations});
            EXPECT_TRUE(status.ok()) << status.ToString();
            return Outputs(std::move(u), std::move(post), std::move(comb));
          },
          FastOutputs::kSameBitsOnHost);

      std::vector<double> u;
      std::vector<double> magnitudes;
      std::vector<double> u_slack;
      std::vector<double> post;
      std::vector<double> post_slack;
      std::vector<double> comb;
      std::vector<double> comb_slack;
      const double eps = static_cast<double>(1e-6F);
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        const auto begin = in.streams.begin() + t * mult * c.dim;
        const std::vector<double> x(begin, begin + mult * c.dim);
        const std::vector<Bounded> m = Logits(x, in.fn, eps);
        const auto at = [&](int64_t k, int part) {
          const size_t i = static_cast<size_t>(k);
          return Scaled(m[i], in.scale[static_cast<size_t>(part)], in.base[i]);
        };
        for (int64_t d = 0; d < c.dim; ++d) {
          double sum = 0;
          double magnitude = 0;
          double slack = 0;
          for (int64_t i = 0; i < mult; ++i) {
            const Bounded weight = Sigmoid(at(i, 0));
            const double value = x[static_cast<size_t>(i * c.dim + d)];
            sum += (weight.value + eps) * value;
            magnitude += std::fabs((weight.value + eps) * value);
            slack += weight.slack * std::fabs(value);
          }
          u.push_back(sum);
          magnitudes.push_back(magnitude);
          u_slack.push_back(slack);
        }
        Matrix logits(static_cast<size_t>(mult));
        double largest = 0;
        for (int64_t i = 0; i < mult; ++i) {
          const Bounded weight = Sigmoid(at(mult + i, 1));
          post.push_back(2 * weight.value);
          post_slack.push_back(2 * weight.slack);
          for (int64_t j = 0; j < mult; ++j) {
            const Bounded logit = at(2 * mult + mult * i + j, 2);
            logits[static_cast<size_t>(i)].push_back(logit.value);
            largest = std::max(largest, logit.slack);
          }
        }
        // An iteration's roundings are mended by the next one; what the logits differ by stays.
        for (const std::vector<double>& row : DoublyStochastic(logits, eps, c.iterations)) {
          comb.insert(comb.end(), row.begin(), row.end());
          comb_slack.insert(comb_slack.end(), row.size(), 4 * largest + 0x1p-20);
        }
      }
      ExpectRounded(dtype, outputs[0].Values(), u, magnitudes, "u");
      ExpectRounded(DType::kF32, outputs[1].Values(), post, {}, "post");
      ExpectRounded(DType::kF32, outputs[2].Values(), comb, {}, "comb");
      ExpectFast(outputs, 0, dtype, u, magnitudes, mult, "u", u_slack);
      ExpectFast(outputs, 1, DType::kF32, post, post, 1, "post", post_slack);
      ExpectFast(outputs, 2, DType::kF32, comb, comb, 1, "comb", comb_slack);
    }
  }
}

TEST(HcPostParity, SumRunsOverTheFirstIndexOfComb) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const HcCase& c : kCases) {
      Random random(62);
      const int64_t mult = c.hc_mult;
      const std::vector<double> y = Rounded(dtype, random.Normals(c.num_tokens * c.dim));
      const std::vector<double> residual = Rounded(dtype, random.Normals(c.num_tokens * mult * c.dim));
      const std::vector<double> post = Rounded(DType::kF32, random.Normals(c.num_tokens * mult));
      const std::vector<double> comb = Rounded(DType::kF32, random.Normals(c.num_tokens * mult * mult));
      const TestTensor y_tensor(dtype, {c.num_tokens, c.dim}, y);
      const TestTensor residual_tensor(dtype, {c.num_tokens, mult, c.dim}, residual);
      const TestTensor post_tensor(DType::kF32, {c.num_tokens, mult}, post);
      const TestTensor comb_tensor(DType::kF32, {c.num_tokens, mult, mult}, comb);
      const auto outputs = RunOnAll(
          [&](const ops::Backend& backend) {
            TestTensor out(dtype, {c.num_tokens, mult, c.dim});
            TestTensor in_place(dtype, {c.num_tokens, mult, c.dim}, residual);
            const ops::HcPostArgs args = {y_tensor, residual_tensor, post_tensor, comb_tensor, out};
            EXPECT_TRUE(backend.table.hc_post(*backend.context, args).ok());
            EXPECT_TRUE(
                backend.table
                    .hc_post(*backend.context, {y_tensor, in_place, post_tensor, comb_tensor, in_place})
                    .ok());
            EXPECT_EQ(in_place.Bytes(), out.Bytes());
            return Outputs(std::move(out));
          },
          FastOutputs::kSameBitsOnHost);
      std::vector<double> want;
      std::vector<double> magnitudes;
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        for (int64_t j = 0; j < mult; ++j) {
          for (int64_t d = 0; d < c.dim; ++d) {
            double sum = post[static_cast<size_t>(t * mult + j)] * y[static_cast<size_t>(t * c.dim + d)];
            double magnitude = std::fabs(sum);
            for (int64_t i = 0; i < mult; ++i) {
              const double term = comb[static_cast<size_t>((t * mult + i) * mult + j)] *
                                  residual[static_cast<size_t>((t * mult + i) * c.dim + d)];
              sum += term;
              magnitude += std::fabs(term);
            }
            want.push_back(sum);
            magnitudes.push_back(magnitude);
          }
        }
      }
      ExpectRounded(dtype, outputs[0].Values(), want, magnitudes, "hc_post");
      ExpectFast(outputs, 0, dtype, want, magnitudes, mult + 1, "hc_post");
    }
  }
}

TEST(HcHeadParity, AgainstTheSpecification) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const HcCase& c : kCases) {
      const HcInputs in = MakeInputs(c, dtype, true);
      const int64_t mult = c.hc_mult;
      const TestTensor streams(dtype, {c.num_tokens, mult, c.dim}, in.streams);
      const TestTensor fn(DType::kF32, {mult, mult * c.dim}, in.fn);
      const TestTensor scale(DType::kF32, {1}, in.scale);
      const TestTensor base(DType::kF32, {mult}, in.base);
      const auto outputs = RunOnAll(
          [&](const ops::Backend& backend) {
            TestTensor y(dtype, {c.num_tokens, c.dim});
            EXPECT_TRUE(
                backend.table.hc_head(*backend.context, {streams, fn, scale, base, y, 1e-6F, 1e-6F}).ok());
            return Outputs(std::move(y));
          },
          FastOutputs::kSameBitsOnHost);
      std::vector<double> want;
      std::vector<double> magnitudes;
      std::vector<double> slacks;
      const double eps = static_cast<double>(1e-6F);
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        const auto begin = in.streams.begin() + t * mult * c.dim;
        const std::vector<double> x(begin, begin + mult * c.dim);
        const std::vector<Bounded> m = Logits(x, in.fn, eps);
        for (int64_t d = 0; d < c.dim; ++d) {
          double sum = 0;
          double magnitude = 0;
          double slack = 0;
          for (size_t i = 0; i < static_cast<size_t>(mult); ++i) {
            const Bounded weight = Sigmoid(Scaled(m[i], in.scale[0], in.base[i]));
            const double value = x[i * static_cast<size_t>(c.dim) + static_cast<size_t>(d)];
            sum += (weight.value + eps) * value;
            magnitude += std::fabs((weight.value + eps) * value);
            slack += weight.slack * std::fabs(value);
          }
          want.push_back(sum);
          magnitudes.push_back(magnitude);
          slacks.push_back(slack);
        }
      }
      ExpectRounded(dtype, outputs[0].Values(), want, magnitudes, "hc_head");
      ExpectFast(outputs, 0, dtype, want, magnitudes, mult, "hc_head", slacks);
    }
  }
}

// field-lessons.md A2: no argument is there for show.
TEST(HcPreMutation, EveryArgumentMatters) {
  const HcCase c = {2, 4, 16, 20};
  const HcInputs in = MakeInputs(c, DType::kBF16, false);
  const TestTensor streams(DType::kBF16, {2, 4, 16}, in.streams);
  const auto run = [&](const HcInputs& inputs, float norm_eps, float hc_eps, int iterations) {
    const TestTensor fn(DType::kF32, {24, 64}, inputs.fn);
    const TestTensor scale(DType::kF32, {3}, inputs.scale);
    const TestTensor base(DType::kF32, {24}, inputs.base);
    TestTensor u(DType::kBF16, {2, 16});
    TestTensor post(DType::kF32, {2, 4});
    TestTensor comb(DType::kF32, {2, 4, 4});
    EXPECT_TRUE(Reference()
                    .table
                    .hc_pre(*Reference().context,
                            {streams, fn, scale, base, u, post, comb, norm_eps, hc_eps, iterations})
                    .ok());
    std::vector<double> all = u.Values();
    for (const TestTensor* tensor : {&post, &comb}) {
      const std::vector<double> values = tensor->Values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<double> base = run(in, 1e-6F, 1e-6F, 20);
  EXPECT_NE(run(in, 1e-1F, 1e-6F, 20), base);
  EXPECT_NE(run(in, 1e-6F, 1e-2F, 20), base);
  EXPECT_NE(run(in, 1e-6F, 1e-6F, 3), base);
  for (size_t i = 0; i < 3; ++i) {
    HcInputs mutated = in;
    mutated.scale[i] += 0.5;
    EXPECT_NE(run(mutated, 1e-6F, 1e-6F, 20), base) << i;
  }
  for (size_t i = 0; i < 24; ++i) {
    HcInputs mutated = in;
    mutated.base[i] += 0.5;
    EXPECT_NE(run(mutated, 1e-6F, 1e-6F, 20), base) << i;
  }
}

}  // namespace
}  // namespace dsv4::test
