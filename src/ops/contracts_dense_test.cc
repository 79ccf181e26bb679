// Contracts of the dense parts: weights, embedding, norms, linears, hyper-connections.
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "formats/quantize.h"
#include "ops/contracts_testing.h"

namespace dsv4::ops {
namespace {

TEST_F(ContractTest, PrepareWeight) {
  const std::vector<float> values(64, 1.0F);
  const QuantizedMatrix matrix = QuantizeMxFp4(values, 2, 32);
  Weight source = matrix.View();
  Weight prepared;
  const PrepareWeightArgs valid{&source, &prepared};
  ExpectOk(valid);
  using A = PrepareWeightArgs;
  ExpectViolation<A>(
      valid, [](A& a) { a.source = nullptr; }, "prepare_weight: source: null");
  ExpectViolation<A>(
      valid, [](A& a) { a.prepared = nullptr; }, "prepare_weight: prepared: null");
  source.cols = 64;
  ExpectViolation<A>(
      valid, [](A&) {}, "source: data: shape [2, 16], want [2, 32]");
  source = matrix.View();
  source.data.device = source.scale.device = {DeviceType::kCuda, 0};
  ExpectViolation<A>(
      valid, [](A&) {}, "source: on a device, want host memory");
}

TEST_F(ContractTest, Embed) {
  const EmbedArgs valid{New(kI32, {3}), New(kBF16, {10, 8}), New(kBF16, {3, 4, 8})};
  ExpectOk(valid);
  ExpectOk(EmbedArgs{New(kI32, {0}), valid.table, New(kBF16, {0, 4, 8})});
  using A = EmbedArgs;
  ExpectViolation<A>(
      valid, [](A& a) { a.token_ids.dtype = DType::kI64; }, "embed: token_ids: dtype I64, want I32");
  ExpectViolation<A>(
      valid, [](A& a) { a.table.dtype = kI32; }, "table: dtype I32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.streams = New(kBF16, {3, 4, 9});
      },
      "streams: shape [3, 4, 9], want [3, *, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.streams = New(kBF16, {2, 4, 8});
      },
      "streams: shape [2, 4, 8], want [3, *, 8]");
  ExpectViolation<A>(
      valid, [](A& a) { a.table.data = nullptr; }, "table: null");
}

TEST_F(ContractTest, RmsNorm) {
  const RmsNormArgs valid{New(kBF16, {3, 8}), New(kF32, {8}), New(kF32, {3, 8}), 1e-6F};
  ExpectOk(valid);
  RmsNormArgs strided = valid;
  strided.x = New(kBF16, {3, 16});
  strided.x.shape = {3, 8};
  ExpectOk(strided);
  RmsNormArgs in_place = valid;
  in_place.y = in_place.x;
  ExpectOk(in_place);
  using A = RmsNormArgs;
  ExpectViolation<A>(
      valid, [&](A& a) { a.weight = New(kF32, {7}); }, "op rms_norm: weight: shape [7], want [8]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.weight = New(kBF16, {8}); }, "weight: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.x = New(kBF16, {3, 8, 1});
      },
      "x: shape [3, 8, 1], want [*, *]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {2, 8});
      },
      "y: shape [2, 8], want [3, 8]");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.x.strides = {1, 3, 0, 0};
      },
      "x: strides [1, 3]");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.y = a.x;
        a.y.data = a.x.as<std::byte>() + 2;
      },
      "y: overlaps x in part");
  ExpectViolation<A>(
      valid, [](A& a) { a.eps = 0.0F; }, "eps: 0, want a positive number");
  ExpectViolation<A>(
      valid, [](A& a) { a.eps = std::nanf(""); }, "eps: nan");
}

TEST_F(ContractTest, HeadRmsNorm) {
  const HeadRmsNormArgs valid{New(kBF16, {3, 2, 8}), New(kBF16, {3, 2, 8}), 1e-6F};
  ExpectOk(valid);
  using A = HeadRmsNormArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {3, 2, 8});
      },
      "head_rms_norm: y: dtype F32, want BF16");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {3, 2, 4});
      },
      "y: shape [3, 2, 4], want [3, 2, 8]");
  ExpectViolation<A>(
      valid, [](A& a) { Slice(a.x); }, "x: strides [24, 8, 1]");
  ExpectViolation<A>(
      valid, [](A& a) { a.eps = -1.0F; }, "eps: -1");
}

TEST_F(ContractTest, Linear) {
  const std::vector<float> values(6 * 32, 1.0F);
  const QuantizedMatrix matrix = QuantizeNvFp4(values, 6, 32);
  Weight weight = matrix.View();
  const LinearArgs valid{New(kBF16, {3, 32}), &weight, New(kF32, {3, 6})};
  ExpectOk(valid);
  ExpectOk(LinearArgs{New(kBF16, {0, 32}), &weight, New(kF32, {0, 6})});
  using A = LinearArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.x = New(kBF16, {3, 31});
      },
      "linear: weight: [6, 32], want [*, 31]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {3, 7});
      },
      "y: shape [3, 7], want [3, 6]");
  ExpectViolation<A>(
      valid, [](A& a) { a.weight = nullptr; }, "weight: null");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.y = a.x;
        a.y.shape = {3, 6};
      },
      "y: overlaps x");
  ExpectViolation<A>(
      valid, [](A& a) { a.x.dtype = DType::kF16; }, "x: dtype F16, want BF16 or F32");
  weight.scale.shape = {6, 1};
  ExpectViolation<A>(
      valid, [](A&) {}, "op linear: weight: scale: shape [6, 1], want [6, 2]");
  weight = matrix.View();
  weight.scale.strides = {1, 6, 0, 0};
  ExpectViolation<A>(
      valid, [](A&) {}, "scale: not contiguous");
}

TEST_F(ContractTest, GroupedLinear) {
  const std::vector<float> values(6 * 32, 1.0F);
  const QuantizedMatrix matrix = QuantizeMxFp4(values, 6, 32);
  Weight weight = matrix.View();
  const GroupedLinearArgs valid{New(kBF16, {4, 2, 32}), &weight, New(kBF16, {4, 2, 3})};
  ExpectOk(valid);
  using A = GroupedLinearArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {4, 2, 4});
      },
      "grouped_linear: weight: [6, 32], want [8, 32]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {4, 3, 2});
      },
      "y: shape [4, 3, 2], want [4, 2, *]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {4, 2, 3});
      },
      "y: dtype F32, want BF16");
  ExpectViolation<A>(
      valid, [](A& a) { Slice(a.x); }, "x: strides");
  weight.activation = ActivationQuant::kFp8Block;
  ExpectViolation<A>(
      valid, [](A&) {}, "weight: rounds its activations");
}

TEST_F(ContractTest, Scale) {
  const ScaleArgs valid{New(kBF16, {3, 5}), New(kBF16, {3, 5}), 0.5F};
  ExpectOk(valid);
  using A = ScaleArgs;
  ExpectViolation<A>(
      valid, [&](A& a) { a.y = New(kBF16, {15}); }, "scale: y: shape [15], want [3, 5]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {3, 5});
      },
      "y: dtype F32, want BF16");
  ExpectViolation<A>(
      valid, [](A& a) { Slice(a.x); }, "x: strides");
}

TEST_F(ContractTest, HcPre) {
  const HcPreArgs valid{
      New(kBF16, {3, 4, 8}), New(kF32, {24, 32}),  New(kF32, {3}), New(kF32, {24}), New(kBF16, {3, 8}),
      New(kF32, {3, 4}),     New(kF32, {3, 4, 4}), 1e-6F,          1e-6F,           20};
  ExpectOk(valid);
  using A = HcPreArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.fn = New(kF32, {24, 8});
      },
      "hc_pre: fn: shape [24, 8], want [24, 32]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.scale = New(kF32, {1}); }, "scale: shape [1], want [3]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.base = New(kF32, {4}); }, "base: shape [4], want [24]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.u = New(kF32, {3, 8});
      },
      "u: dtype F32, want BF16");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.post = New(kBF16, {3, 4});
      },
      "post: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.comb = New(kF32, {3, 16});
      },
      "comb: shape [3, 16], want [3, 4, 4]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.streams = New(kBF16, {3, 17, 8});
      },
      "hc_mult: 17, want 1 to 16");
  ExpectViolation<A>(
      valid, [](A& a) { a.sinkhorn_iters = 0; }, "sinkhorn_iters: 0");
  ExpectViolation<A>(
      valid, [](A& a) { a.norm_eps = 0; }, "norm_eps: 0");
  ExpectViolation<A>(
      valid, [](A& a) { a.hc_eps = -1; }, "hc_eps: -1");
}

TEST_F(ContractTest, HcPost) {
  const HcPostArgs valid{New(kBF16, {3, 8}), New(kBF16, {3, 4, 8}), New(kF32, {3, 4}), New(kF32, {3, 4, 4}),
                         New(kBF16, {3, 4, 8})};
  ExpectOk(valid);
  HcPostArgs in_place = valid;
  in_place.out = in_place.residual;
  ExpectOk(in_place);
  using A = HcPostArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {3, 9});
      },
      "hc_post: y: shape [3, 9], want [3, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.out = New(kBF16, {3, 8});
      },
      "out: shape [3, 8], want [3, 4, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.comb = New(kF32, {3, 4, 3});
      },
      "comb: shape [3, 4, 3], want [3, 4, 4]");
  ExpectViolation<A>(
      valid, [](A& a) { a.out.data = a.residual.as<std::byte>() + 64; }, "out: overlaps residual in part");
}

TEST_F(ContractTest, HcHead) {
  const HcHeadArgs valid{New(kBF16, {3, 4, 8}),
                         New(kF32, {4, 32}),
                         New(kF32, {1}),
                         New(kF32, {4}),
                         New(kBF16, {3, 8}),
                         1e-6F,
                         1e-6F};
  ExpectOk(valid);
  using A = HcHeadArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.fn = New(kF32, {24, 32});
      },
      "hc_head: fn: shape [24, 32], want [4, 32]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.scale = New(kF32, {3}); }, "scale: shape [3], want [1]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {3, 4, 8});
      },
      "y: shape [3, 4, 8], want [3, 8]");
}

TEST_F(ContractTest, EngramMix) {
  const EngramMixArgs valid{.streams = New(kBF16, {3, 4, 8}),
                            .mixed = New(kBF16, {3, 40}),
                            .q_weight = New(kF32, {4, 8}),
                            .k_weight = New(kF32, {4, 8}),
                            .is_image = New(kI32, {3}),
                            .out = New(kBF16, {3, 4, 8}),
                            .eps = 1e-20F};
  ExpectOk(valid);
  EngramMixArgs all_text = valid;
  all_text.is_image = {};
  all_text.out = all_text.streams;
  ExpectOk(all_text);
  using A = EngramMixArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.mixed = New(kBF16, {3, 32});
      },
      "engram_mix: mixed: shape [3, 32], want [3, 40]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.k_weight = New(kF32, {8}); }, "k_weight: shape [8], want [4, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.q_weight = New(kBF16, {4, 8});
      },
      "q_weight: dtype BF16, want F32");
  ExpectViolation<A>(
      valid, [&](A& a) { a.is_image = New(kI32, {4}); }, "is_image: shape [4], want [3]");
  ExpectViolation<A>(
      valid, [](A& a) { a.eps = 0; }, "eps: 0, want a positive number");
  ExpectViolation<A>(
      valid, [](A& a) { a.out.data = a.streams.as<std::byte>() + 64; }, "out: overlaps streams in part");
  ExpectViolation<A>(
      valid, [](A& a) { a.out.data = a.mixed.data; }, "out: overlaps mixed");
}

TEST_F(ContractTest, Sample) {
  std::vector<sampling::ChoiceParams> choices(3);
  const SampleArgs valid{.logits = New(kF32, {3, 40}),
                         .allowed = New(DType::kU8, {40}),
                         .choices = choices,
                         .tokens = New(kI32, {3}),
                         .faults = New(kI32, {3})};
  ExpectOk(valid);
  SampleArgs all_allowed = valid;
  all_allowed.allowed = {};
  ExpectOk(all_allowed);
  ExpectOk(SampleArgs{.logits = New(kF32, {0, 40}),
                      .allowed = {},
                      .choices = {},
                      .tokens = New(kI32, {0}),
                      .faults = New(kI32, {0})});
  using A = SampleArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.logits = New(kBF16, {3, 40});
      },
      "sample: logits: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.logits = New(kF32, {3, 0});
      },
      "logits: vocab_size 0, want 1 to 262144");
  ExpectViolation<A>(
      valid, [&](A& a) { a.allowed = New(DType::kU8, {39}); }, "allowed: shape [39], want [40]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.tokens = New(kI32, {2}); }, "tokens: shape [2], want [3]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.faults = New(DType::kI64, {3}); }, "faults: dtype I64, want I32");
  ExpectViolation<A>(
      valid, [&](A& a) { a.faults = a.tokens; }, "tokens: overlaps faults");
  ExpectViolation<A>(
      valid, [&](A& a) { a.choices = a.choices.first(2); }, "choices: 2, want 3");
  const auto expect_choice = [&](auto change, const std::string& text) {
    choices[1] = {};
    change(choices[1]);
    ExpectViolation<A>(
        valid, [](A&) {}, "op sample: choices[1]." + text);
  };
  expect_choice([](auto& c) { c.temperature = -1.0F; }, "temperature: -1");
  expect_choice([](auto& c) { c.temperature = NAN; }, "temperature: nan");
  expect_choice([](auto& c) { c.top_k = -2; }, "top_k: -2");
  expect_choice([](auto& c) { c.top_p = 0.0F; }, "top_p: 0");
  expect_choice([](auto& c) { c.min_p = 1.0F; }, "min_p: 1");
  expect_choice([](auto& c) { c.uniform = 1.0; }, "uniform: 1");
  const std::vector<sampling::ChoiceParams> drawn(3);
  const auto expect = [&](auto change, const std::string& message) {
    SampleArgs args = valid;
    args.choices = drawn;
    change(args);
    if (message.empty()) {
      ExpectOk(args);
    } else {
      EXPECT_THAT(Validate(args).message(), ::testing::HasSubstr(message));
    }
  };
  const auto changed = [&](std::vector<RowChange> all, const std::string& message) {
    expect([&](A& a) { a.changes = all; }, message);
  };
  changed({{0, 39, 1.0F}, {1, 3, -INFINITY, 7}, {1, 4, 2.0F}}, "");
  changed({{3, 0, 1.0F}}, "changes[0].row: 3, want 0 to 2");
  changed({{0, 40, 1.0F}}, "changes[0].token: 40, want 0 to 39");
  changed({{0, 1, NAN}}, "changes[0].bias: nan, want a number");
  changed({{0, 1, 0.0F, -1}}, "changes[0].count: -1, want 0 or more");
  changed({{0, 1, 1.0F}, {0, 1, 1.0F}}, "changes[1]: 1, want an order by row and token");
  changed({{1, 1, 1.0F}, {0, 2, 1.0F}}, "changes[1]: 2, want an order by row and token");
  std::vector<RowRule> rules(3);
  const std::vector<uint64_t> masks(2);
  const auto ruled = [&](auto change, const std::string& message) {
    rules[1] = {};
    change(rules[1]);
    expect(
        [&](A& a) {
          a.rules = rules;
          a.masks = masks;
          a.scores = New(kI32, {3, ScoresWidth(2)});
        },
        message);
  };
  ruled([](auto& r) { r = {.penalties = {2.0F, 1.0F, -1.0F}, .mask = 1, .num_top = 2}; }, "");
  ruled([](auto& r) { r.penalties.repetition = 0.0F; },
        "rules[1].penalties.repetition: 0, want a number > 0");
  ruled([](auto& r) { r.penalties.presence = NAN; }, "rules[1].penalties.presence: nan");
  ruled([](auto& r) { r.penalties.frequency = INFINITY; }, "rules[1].penalties.frequency: inf");
  ruled([](auto& r) { r.mask = 2; }, "rules[1].mask: 2, want less than 2");
  ruled([](auto& r) { r.num_top = 129; }, "rules[1].num_top: 129, want at most 128");
  ruled([](auto& r) { r.num_top = 3; }, "scores: width 10, want 12 or more");
  expect([&](A& a) { a.rules = std::span(rules).first(2); }, "rules: 2, want none or 3");
  rules[1] = {.num_top = 0};
  expect([&](A& a) { a.rules = rules; }, "scores: ");
}

}  // namespace
}  // namespace dsv4::ops
