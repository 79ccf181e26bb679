// Contracts of the mixture of experts.
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "formats/quantize.h"
#include "ops/contracts_testing.h"

namespace dsv4::ops {
namespace {

TEST_F(ContractTest, Router) {
  const RouterArgs scored{New(kF32, {3, 8}), New(kF32, {8}),    {},  {},
                          New(kI32, {3, 2}), New(kF32, {3, 2}), 1.5F};
  const RouterArgs hashed{
      New(kF32, {3, 8}), {},  New(DType::kI64, {100, 2}), New(kI32, {3}), New(kI32, {3, 2}),
      New(kF32, {3, 2}), 1.5F};
  ExpectOk(scored);
  ExpectOk(hashed);
  using A = RouterArgs;
  ExpectViolation<A>(
      scored, [](A& a) { a.temperature = 0; }, "router: temperature: 0, want a positive number");
  ExpectViolation<A>(
      scored, [](A& a) { a.sum_eps = -1; }, "router: sum_eps: -1, want a number not below 0");
  ExpectViolation<A>(
      hashed, [&](A& a) { a.bias = New(kF32, {8}); }, "router: bias: given, want null with hash_table");
  ExpectViolation<A>(
      hashed, [](A& a) { a.hash_table = {}; }, "token_ids: given, want null without hash_table");
  ExpectViolation<A>(
      hashed, [](A& a) { a.token_ids = {}; }, "token_ids: shape [], want [3]");
  ExpectViolation<A>(
      hashed,
      [&](A& a) {
        a.hash_table = New(kI32, {100, 3});
      },
      "hash_table: shape [100, 3], want [*, 2]");
  ExpectViolation<A>(
      scored, [&](A& a) { a.bias = New(kF32, {7}); }, "bias: shape [7], want [8]");
  ExpectViolation<A>(
      scored,
      [&](A& a) {
        a.indices = New(kI32, {3, 9});
      },
      "indices: top_k 9, want 1 to 8");
  ExpectViolation<A>(
      scored,
      [&](A& a) {
        a.indices = New(kI32, {3, 0});
      },
      "indices: top_k 0");
  ExpectViolation<A>(
      scored,
      [&](A& a) {
        a.weights = New(kBF16, {3, 2});
      },
      "weights: dtype BF16, want F32");
  ExpectViolation<A>(
      scored, [](A& a) { a.route_scale = std::numeric_limits<float>::infinity(); }, "route_scale: inf");
}

TEST_F(ContractTest, Swiglu) {
  const SwigluArgs valid{New(kBF16, {3, 8}), New(kBF16, {3, 8}), New(kF32, {3}), New(kBF16, {3, 8}), 10.0F};
  ExpectOk(valid);
  SwigluArgs free = valid;
  free.row_weights = {};
  free.limit = std::numeric_limits<float>::infinity();
  free.y = free.up;
  ExpectOk(free);
  using A = SwigluArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.up = New(kF32, {3, 8});
      },
      "swiglu: up: dtype F32, want BF16");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.up = New(kBF16, {3, 7});
      },
      "up: shape [3, 7], want [3, 8]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.row_weights = New(kF32, {2}); }, "row_weights: shape [2], want [3]");
  ExpectViolation<A>(
      valid, [](A& a) { a.limit = 0.0F; }, "limit: 0, want a positive number or infinity");
  ExpectViolation<A>(
      valid, [](A& a) { a.limit = std::nanf(""); }, "limit: nan");
  ExpectViolation<A>(
      valid, [](A& a) { a.y.data = a.gate.as<std::byte>() + 4; }, "y: overlaps gate in part");
}

TEST_F(ContractTest, RoutedExperts) {
  const std::vector<float> values(64 * 32, 1.0F);
  const QuantizedMatrix in = QuantizeNvFp4(values, 64, 32);
  const QuantizedMatrix out = QuantizeFp8Block(values, 32, 64, 16, 16);
  std::vector<ExpertWeights> experts(3, {in.View(), out.View(), in.View()});
  const RoutedExpertsArgs valid{New(kBF16, {5, 32}), New(kI32, {5, 2}), New(kF32, {5, 2}), experts, 1.0F,
                                New(kF32, {5, 32})};
  ExpectOk(valid);
  using A = RoutedExpertsArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {5, 32});
      },
      "routed_experts: y: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.weights = New(kF32, {5, 3});
      },
      "weights: shape [5, 3], want [5, 2]");
  ExpectViolation<A>(
      valid, [](A& a) { a.experts = {}; }, "experts: none");
  ExpectViolation<A>(
      valid, [](A& a) { a.limit = -1.0F; }, "limit: -1");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.x = New(kBF16, {5, 64});
        a.y = New(kF32, {5, 64});
      },
      "expert 0: w1: [64, 32], want [64, 64]");
  experts[2].w2 = in.View();
  ExpectViolation<A>(
      valid, [](A&) {}, "op routed_experts: expert 2: w2: [64, 32], want [32, 64]");
  experts[2].w2 = out.View();
  experts[1].w3.scale = out.View().scale;
  ExpectViolation<A>(
      valid, [](A&) {}, "expert 1: w3: scale: shape [2, 4], want [64, 2]");
}

TEST_F(ContractTest, ExpertTerms) {
  const std::vector<float> values(64 * 32, 1.0F);
  const QuantizedMatrix in = QuantizeNvFp4(values, 64, 32);
  const QuantizedMatrix out = QuantizeFp8Block(values, 32, 64, 16, 16);
  std::vector<ExpertWeights> experts(3, {in.View(), out.View(), in.View()});
  const ExpertTermsArgs valid{
      New(kBF16, {5, 32}), New(kI32, {5, 2}), New(kF32, {5, 2}), experts, 4, 7, 1.0F, New(kBF16, {5, 2, 32})};
  ExpectOk(valid);
  ExpertTermsArgs none = valid;
  none.experts = {};
  ExpectOk(none);
  using A = ExpertTermsArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.terms = New(kF32, {5, 2, 32});
      },
      "expert_terms: terms: dtype F32, want BF16");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.terms = New(kBF16, {5, 3, 32});
      },
      "terms: shape [5, 3, 32], want [5, 2, 32]");
  ExpectViolation<A>(
      valid, [](A& a) { a.terms.data = a.x.data; }, "terms: overlaps x");
  ExpectViolation<A>(
      valid, [](A& a) { a.first_expert = 5; }, "experts: 5 to 7, want 0 to 6");
  ExpectViolation<A>(
      valid, [](A& a) { a.first_expert = -1; }, "experts: -1 to 1, want 0 to 6");
  ExpectViolation<A>(
      valid, [](A& a) { a.limit = 0.0F; }, "limit: 0");
  experts[1].w3 = out.View();
  ExpectViolation<A>(
      valid, [](A&) {}, "op expert_terms: expert 1: w3: [32, 64], want [64, 32]");
}

TEST_F(ContractTest, SumTerms) {
  const std::vector<int64_t> begins = {0, 4, 4, 9};
  const SumTermsArgs valid{New(kBF16, {3, 5, 2, 32}), New(kI32, {5, 2}), begins, New(kF32, {5, 32})};
  ExpectOk(valid);
  using A = SumTermsArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {5, 64});
      },
      "sum_terms: y: shape [5, 64], want [5, 32]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.indices = New(kI32, {5, 3});
      },
      "indices: shape [5, 3], want [5, 2]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.begins = std::span(begins).first(3); }, "begins: 3, want 4 of them");
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{0, 4, 3, 9}, {1, 4, 4, 9}}) {
    ExpectViolation<A>(
        valid, [&](A& a) { a.begins = wrong; }, "want ids from 0 on, ascending");
  }
  const std::vector<int64_t> many(kMaxTermParts + 2, 0);
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.parts = New(kF32, {kMaxTermParts + 1, 5, 2, 32});
        a.begins = many;
      },
      "parts: 65, want 1 to 64");
}

TEST_F(ContractTest, MoeCombine) {
  const MoeCombineArgs valid{New(kF32, {3, 8}), New(kBF16, {3, 8}), New(kBF16, {3, 8})};
  ExpectOk(valid);
  MoeCombineArgs in_place = valid;
  in_place.y = in_place.shared;
  ExpectOk(in_place);
  MoeCombineArgs alone = valid;
  alone.shared = {};
  ExpectOk(alone);
  alone.y = alone.routed;
  ExpectOk(alone);
  using A = MoeCombineArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.shared = {};
        a.y = New(kBF16, {3, 4});
      },
      "y: shape [3, 4], want [3, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.routed = New(kBF16, {3, 8});
      },
      "moe_combine: routed: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.shared = New(kBF16, {3, 4});
      },
      "shared: shape [3, 4], want [3, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {3, 8});
      },
      "y: dtype F32, want BF16");
}

TEST_F(ContractTest, SumRows) {
  const std::vector<int32_t> targets = {2, 0, 2};
  const SumRowsArgs valid{New(kF32, {3, 8}), targets, New(kF32, {4, 8})};
  ExpectOk(valid);
  using A = SumRowsArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.rows = New(kF32, {4, 8});
      },
      "sum_rows: rows: shape [4, 8], want [3, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.out = New(kBF16, {4, 8});
      },
      "out: dtype BF16, want F32");
  ExpectViolation<A>(
      valid, [&](A& a) { a.out = a.rows; }, "overlap");
  for (const int32_t outside : {-1, 4}) {
    const std::vector<int32_t> wrong = {2, outside, 2};
    const Status status = Validate(A{valid.rows, wrong, valid.out});
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_EQ(status.message(), "op sum_rows: targets[1]: " + std::to_string(outside) + ", want 0 to 3");
  }
}

}  // namespace
}  // namespace dsv4::ops
