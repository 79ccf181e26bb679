// expert_terms and sum_terms: experts divided in every way give routed_experts, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/parity/backends.h"
#include "tests/parity/experts.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

constexpr float kLimit = 0.8F;

struct Problem {
  ExpertCase size;
  DType dtype;
  TestExperts experts;
  TestTensor x;
  TestTensor indices;
  TestTensor weights;
};

Problem MakeProblem(const ExpertCase& c, ExpertFormat format, DType dtype, bool repeat = false) {
  Random random(71);
  TestExperts experts = MakeExperts(c.num_experts, c.dim, c.inter_dim, format, random);
  TestTensor x(dtype, {c.num_tokens, c.dim}, random.Normals(c.num_tokens * c.dim));
  std::vector<double> indices = DistinctIndices(c, random);
  // An expert that fills the first and the last place of a row adds two terms.
  for (size_t i = 0; repeat && i < indices.size(); i += static_cast<size_t>(c.top_k))
    indices[i + static_cast<size_t>(c.top_k) - 1] = indices[i];
  TestTensor index_tensor(DType::kI32, {c.num_tokens, c.top_k}, indices);
  TestTensor weights(DType::kF32, {c.num_tokens, c.top_k}, random.Normals(c.num_tokens * c.top_k));
  return {c, dtype, std::move(experts), std::move(x), std::move(index_tensor), std::move(weights)};
}

ops::ExpertTermsArgs TermsArgs(const Problem& p, int64_t begin, int64_t end, const TensorView& terms) {
  const auto here = std::span<const ops::ExpertWeights>(p.experts.weights)
                        .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return {.x = p.x,
          .indices = p.indices,
          .weights = p.weights,
          .experts = here,
          .first_expert = begin,
          .num_experts = p.size.num_experts,
          .limit = kLimit,
          .terms = terms};
}

std::vector<TestTensor> RunWhole(const ops::Backend& backend, const Problem& p) {
  TestTensor y(DType::kF32, {p.size.num_tokens, p.size.dim});
  const Status status = backend.table.routed_experts(
      *backend.context, {p.x, p.indices, p.weights, p.experts.weights, kLimit, y});
  EXPECT_TRUE(status.ok()) << backend.name << ": " << status.ToString();
  return Outputs(std::move(y));
}

// Every part's terms lie in one tensor whose other rows stay NaN: a sum that takes a row of another part
// shows.
std::vector<TestTensor> RunParts(const ops::Backend& backend, const Problem& p,
                                 const std::vector<int64_t>& begins) {
  const auto num_parts = static_cast<int64_t>(begins.size()) - 1;
  const Shape part_shape = {p.size.num_tokens, p.size.top_k, p.size.dim};
  TestTensor parts(p.dtype, {num_parts, p.size.num_tokens, p.size.top_k, p.size.dim});
  for (int64_t i = 0; i < num_parts; ++i) {
    const auto n = static_cast<size_t>(i);
    const Status status = backend.table.expert_terms(
        *backend.context,
        TermsArgs(p, begins[n], begins[n + 1], parts.view().Rows(i, i + 1).Reshaped(part_shape)));
    EXPECT_TRUE(status.ok()) << backend.name << ": " << status.ToString();
  }
  TestTensor y(DType::kF32, {p.size.num_tokens, p.size.dim});
  const Status status = backend.table.sum_terms(*backend.context, {parts, p.indices, begins, y});
  EXPECT_TRUE(status.ok()) << backend.name << ": " << status.ToString();
  return Outputs(std::move(y), std::move(parts));
}

// The experts [0, num_experts) in one part, in halves, one expert and the rest, and with parts that have
// none.
std::vector<std::vector<int64_t>> Divisions(int64_t num_experts) {
  return {{0, num_experts},
          {0, num_experts / 2, num_experts},
          {0, 1, 1, (num_experts + 1) / 2, num_experts, num_experts}};
}

// Rows of experts elsewhere hold what was there, all others numbers.
void ExpectOwnRowsOnly(const Problem& p, const std::vector<int64_t>& begins, const TestTensor& parts,
                       const std::string& what) {
  const std::vector<double> values = parts.Values();
  const std::vector<double> indices = p.indices.Values();
  const auto dim = static_cast<size_t>(p.size.dim);
  for (size_t row = 0; row < values.size() / dim; ++row) {
    const size_t part = row / indices.size();
    const auto expert = static_cast<int64_t>(indices[row % indices.size()]);
    const bool here = expert >= begins[part] && expert < begins[part + 1];
    const auto numbers = std::count_if(values.begin() + static_cast<int64_t>(row * dim),
                                       values.begin() + static_cast<int64_t>((row + 1) * dim),
                                       [](double value) { return !std::isnan(value); });
    ASSERT_EQ(numbers, here ? p.size.dim : 0) << what << ", row " << row << " of expert " << expert;
  }
}

// Every backend gives the bits of its own routed_experts.
void ExpectSameSums(const Problem& p, const std::vector<int64_t>& begins, const Runs& divided,
                    const Runs& whole, const std::string& what) {
  EXPECT_EQ(divided[0].Bytes(), whole[0].Bytes()) << what;
  ExpectOwnRowsOnly(p, begins, divided[1], what);
  for (const Runs::Fast& fast : divided.fast()) {
    const auto same =
        std::ranges::find_if(whole.fast(), [&](const auto& w) { return w.backend == fast.backend; });
    ASSERT_NE(same, whole.fast().end());
    EXPECT_EQ(fast.outputs[0].Bytes(), same->outputs[0].Bytes()) << fast.backend->name << ", " << what;
    ExpectOwnRowsOnly(p, begins, fast.outputs[1], fast.backend->name + ", " + what);
  }
}

TEST(ExpertTermsParity, SumOverPartsIsThatOfAllExperts) {
  const ExpertCase cases[] = {
      {0, 4, 2, 32, 32},
      {1, 1, 1, 32, 64},
      {5, 8, 3, 64, 96},
      {40, 16, 6, 160, 32},
      // Whole tiles of 16 rows and units of 128 columns: kernels for a few tokens, and for some tens.
      {1, 6, 3, 256, 384},
      {4, 8, 6, 128, 256},
      {8, 9, 6, 256, 128},
      {70, 12, 6, 256, 128}};
  for (const ExpertCase& c : cases) {
    for (const ExpertFormat format :
         {ExpertFormat::kNvFp4, ExpertFormat::kMxFp4, ExpertFormat::kFp8, ExpertFormat::kMixed}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const Problem p = MakeProblem(c, format, dtype, c.top_k > 2 && c.num_tokens % 2 == 0);
        const Runs whole = RunOnAll([&](const ops::Backend& backend) { return RunWhole(backend, p); },
                                    FastOutputs::kBounded);
        for (const std::vector<int64_t>& begins : Divisions(c.num_experts)) {
          const std::string what = std::to_string(c.num_tokens) + " tokens, format " +
                                   std::to_string(static_cast<int>(format)) + ", " +
                                   std::to_string(begins.size() - 1) + " parts";
          const Runs divided =
              RunOnAll([&](const ops::Backend& backend) { return RunParts(backend, p, begins); },
                       FastOutputs::kBounded, OpsUsed::kOfShards);
          ExpectSameSums(p, begins, divided, whole, what);
        }
      }
    }
  }
}

// A backend may multiply the tokens of an expert that many chose in pieces.
TEST(ExpertTermsParity, ManyTokensOfAnExpertHaveTheBitsOfFew) {
  constexpr int64_t kFew = 30;
  const Problem p = MakeProblem({150, 2, 1, 8192, 32}, ExpertFormat::kNvFp4, DType::kBF16);
  const Runs runs = RunOnAll(
      [&](const ops::Backend& backend) {
        TestTensor together(DType::kF32, {p.size.num_tokens, p.size.dim});
        TestTensor apart(DType::kF32, {p.size.num_tokens, p.size.dim});
        const auto run = [&](int64_t begin, int64_t end, const TestTensor& y) {
          const Status status = backend.table.routed_experts(
              *backend.context,
              {p.x.view().Rows(begin, end), p.indices.view().Rows(begin, end),
               p.weights.view().Rows(begin, end), p.experts.weights, kLimit, y.view().Rows(begin, end)});
          EXPECT_TRUE(status.ok()) << backend.name << ": " << status.ToString();
        };
        run(0, p.size.num_tokens, together);
        for (int64_t begin = 0; begin < p.size.num_tokens; begin += kFew) run(begin, begin + kFew, apart);
        return Outputs(std::move(together), std::move(apart));
      },
      FastOutputs::kBounded);
  EXPECT_EQ(runs[0].Bytes(), runs[1].Bytes());
  for (const Runs::Fast& fast : runs.fast())
    EXPECT_EQ(fast.outputs[0].Bytes(), fast.outputs[1].Bytes()) << fast.backend->name;
}

// Experts that nobody here has chosen, and one that is.
TEST(ExpertTermsParity, NoneChosen) {
  for (const ExpertFormat format : {ExpertFormat::kNvFp4, ExpertFormat::kMxFp4, ExpertFormat::kFp8}) {
    for (const int64_t num_tokens : {1, 8, 40}) {
      Problem p = MakeProblem({num_tokens, 20, 2, 128, 256}, format, DType::kBF16);
      std::vector<double> indices;
      for (int64_t i = 0; i < 2 * num_tokens; ++i) indices.push_back(static_cast<double>(i % 5));
      p.indices.Set(indices);
      const std::vector<int64_t> begins = {0, 4, 5, 20};
      const Runs whole =
          RunOnAll([&](const ops::Backend& backend) { return RunWhole(backend, p); }, FastOutputs::kBounded);
      const Runs divided = RunOnAll([&](const ops::Backend& backend) { return RunParts(backend, p, begins); },
                                    FastOutputs::kBounded, OpsUsed::kOfShards);
      ExpectSameSums(p, begins, divided, whole, std::to_string(num_tokens) + " tokens");
    }
  }
}

// Additions of fp32 in the order of the contract have one result.
TEST(SumTermsParity, InOrderOfExpertThenOfPlace) {
  struct Case {
    int64_t num_tokens;
    int64_t top_k;
    int64_t dim;
    std::vector<int64_t> begins;
  };
  std::vector<int64_t> most(65);
  std::iota(most.begin(), most.end(), 0);
  for (const Case& c : {Case{0, 2, 8, {0, 3}}, Case{1, 1, 1, {0, 0, 1}}, Case{3, 6, 255, {0, 5, 5, 9}},
                        Case{33, 8, 4096, {0, 3, 9}}, Case{7, 7, 1032, most}}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      Random random(73);
      const auto num_parts = static_cast<int64_t>(c.begins.size()) - 1;
      const int64_t num_assignments = c.num_tokens * c.top_k;
      std::vector<double> indices;
      for (int64_t i = 0; i < num_assignments; ++i)
        indices.push_back(static_cast<double>(random.Below(c.begins.back())));
      const std::vector<double> parts = Rounded(dtype, random.Spread(num_parts * num_assignments * c.dim));
      const TestTensor parts_tensor(dtype, {num_parts, c.num_tokens, c.top_k, c.dim}, parts);
      const TestTensor index_tensor(DType::kI32, {c.num_tokens, c.top_k}, indices);
      const auto outputs = RunOnAll(
          [&](const ops::Backend& backend) {
            TestTensor y(DType::kF32, {c.num_tokens, c.dim});
            const Status status =
                backend.table.sum_terms(*backend.context, {parts_tensor, index_tensor, c.begins, y});
            EXPECT_TRUE(status.ok()) << status.ToString();
            return Outputs(std::move(y));
          },
          FastOutputs::kSameBits, OpsUsed::kOfShards);
      std::vector<double> want;
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        std::vector<float> sum(static_cast<size_t>(c.dim), 0.0F);
        for (int64_t part = 0; part < num_parts; ++part) {
          const auto p = static_cast<size_t>(part);
          for (int64_t expert = c.begins[p]; expert < c.begins[p + 1]; ++expert) {
            for (int64_t i = t * c.top_k; i < (t + 1) * c.top_k; ++i) {
              if (static_cast<int64_t>(indices[static_cast<size_t>(i)]) != expert) continue;
              for (size_t d = 0; d < sum.size(); ++d) {
                sum[d] +=
                    static_cast<float>(parts[static_cast<size_t>((part * num_assignments + i) * c.dim) + d]);
              }
            }
          }
        }
        want.insert(want.end(), sum.begin(), sum.end());
      }
      EXPECT_EQ(outputs[0].Values(), want) << c.num_tokens << " tokens of " << c.dim;
    }
  }
}

TEST(ExpertTermsParity, AnIndexOutsideTheExpertsIsNamed) {
  Problem p = MakeProblem({1, 4, 2, 32, 32}, ExpertFormat::kMxFp4, DType::kBF16);
  for (const double bad : {-1.0, 4.0}) {
    p.indices.Set(std::vector<double>{0, bad});
    TestTensor terms(DType::kBF16, {1, 2, 32});
    const auto& reference = Reference();
    Status status = reference.table.expert_terms(*reference.context, TermsArgs(p, 1, 3, terms));
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_NE(status.message().find("op expert_terms: indices[0, 1]"), std::string::npos) << status.message();
    const TestTensor parts(DType::kBF16, {2, 1, 2, 32}, std::vector<double>(128, 1.0));
    TestTensor y(DType::kF32, {1, 32});
    const std::vector<int64_t> begins = {0, 2, 4};
    status = reference.table.sum_terms(*reference.context, {parts, p.indices, begins, y});
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_NE(status.message().find("op sum_terms: indices[0, 1]"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace dsv4::test
