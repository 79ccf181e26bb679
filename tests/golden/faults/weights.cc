// Mistake 25: stored bytes read wrongly. The wrong bytes are seeded into copies of the scales and codes.
#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

void ForEachWeight(ModelParts& parts, const std::function<void(Weight&)>& change) {
  for (model::LayerWeights& layer : parts.weights.layers) {
    for (Weight* weight : {&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_a, &layer.wo_b}) change(*weight);
    if (layer.indexer.has_value()) change(layer.indexer->wq_b);
    for (model::ExpertWeights& expert : layer.experts) {
      for (Weight* weight : {&expert.w1, &expert.w2, &expert.w3}) change(*weight);
    }
    for (Weight* weight : {&layer.shared_expert.w1, &layer.shared_expert.w2, &layer.shared_expert.w3}) {
      change(*weight);
    }
  }
}

// A view of a changed copy; byte i of it is byte(i) of the original.
TensorView Rewritten(ModelParts& parts, const TensorView& view, const std::function<uint8_t(int64_t)>& byte) {
  Result<Buffer> copy = HostMemory().Allocate(static_cast<size_t>(view.num_bytes()));
  if (!copy.has_value()) throw std::runtime_error(copy.error().ToString());
  for (int64_t i = 0; i < view.num_bytes(); ++i) static_cast<uint8_t*>(copy->data())[i] = byte(i);
  parts.weights.copies.push_back(*copy);
  return TensorView::Contiguous(copy->data(), view.dtype, view.shape);
}

void RewriteE8m0(ModelParts& parts, const std::function<uint8_t(uint8_t)>& change) {
  ForEachWeight(parts, [&](Weight& weight) {
    if (weight.scale.is_null() || weight.scale.dtype != DType::kF8E8M0) return;
    const TensorView scale = weight.scale;
    weight.scale = Rewritten(parts, scale, [&](int64_t i) { return change(scale.as<const uint8_t>()[i]); });
  });
}

// `source(row, column)` of an MXFP4 scale table, as an index into it.
void MoveMxFp4Scales(ModelParts& parts,
                     const std::function<int64_t(const Shape&, int64_t, int64_t)>& source) {
  ForEachWeight(parts, [&](Weight& weight) {
    if (weight.format != WeightFormat::kMxFp4) return;
    const TensorView scale = weight.scale;
    const int64_t columns = scale.shape[1];
    weight.scale = Rewritten(parts, scale, [&](int64_t i) {
      return scale.as<const uint8_t>()[source(scale.shape, i / columns, i % columns)];
    });
  });
}

}  // namespace

void AddWeightMistakes(SeededMistakes& mistakes) {
  // 2^(byte - 127) converted to an integer, and that taken for the byte.
  mistakes["25-e8m0-numeric"].mutation.parts = [](ModelParts& parts) {
    RewriteE8m0(parts, [](uint8_t byte) {
      return static_cast<uint8_t>(std::min(std::ldexp(1.0, byte - 127), 254.0));
    });
  };
  mistakes["25-e8m0-inverse"].mutation.parts = [](ModelParts& parts) {
    RewriteE8m0(parts, [](uint8_t byte) { return static_cast<uint8_t>(254 - byte); });
  };
  mistakes["25-nibbles-swapped"].mutation.parts = [](ModelParts& parts) {
    ForEachWeight(parts, [&](Weight& weight) {
      if (weight.format != WeightFormat::kMxFp4) return;
      const TensorView data = weight.data;
      weight.data = Rewritten(parts, data, [&](int64_t i) {
        const uint8_t packed = data.as<const uint8_t>()[i];
        return static_cast<uint8_t>(packed << 4 | packed >> 4);
      });
    });
  };
  mistakes["25-mxfp4-scale-layout"].mutation.parts = [](ModelParts& parts) {
    MoveMxFp4Scales(parts,
                    [](const Shape& shape, int64_t row, int64_t column) { return column * shape[0] + row; });
  };
  mistakes["25-mxfp4-square-blocks"].mutation.parts = [](ModelParts& parts) {
    MoveMxFp4Scales(parts, [](const Shape& shape, int64_t row, int64_t column) {
      return row / 128 * 128 * shape[1] + column / 4 * 4;
    });
  };
  mistakes["25-tensor-scale-dropped"].mutation.parts = [](ModelParts& parts) {
    ForEachWeight(parts, [](Weight& weight) {
      if (weight.format == WeightFormat::kNvFp4) weight.global_scale = 1;
    });
  };
  mistakes["25-global-scale-inverse"].mutation.parts = [](ModelParts& parts) {
    ForEachWeight(parts, [](Weight& weight) { weight.global_scale_divides = !weight.global_scale_divides; });
  };
}

}  // namespace dsv4::testing
