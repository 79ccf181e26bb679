// Recorder: an observer that keeps every tensor of a run as fp32, rows of later passes behind those of
// earlier ones.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/number_formats.h"
#include "model/graph/observer.h"

namespace dsv4::test {

class Recorder final : public model::Observer {
 public:
  struct Tensor {
    DType dtype = DType::kF32;
    Shape last_shape;
    int64_t num_rows = 0;
    int64_t width = 0;  // Elements of a row of the first dimension.
    std::vector<float> values;

    std::span<const float> Row(int64_t row) const {
      return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
    }
  };

  void OnTensor(int layer, std::string_view name, const TensorView& view) override {
    ASSERT_TRUE(view.is_contiguous()) << name;
    Tensor& tensor = tensors_[{layer, std::string(name)}];
    tensor.dtype = view.dtype;
    tensor.last_shape = view.shape;
    tensor.num_rows += view.shape[0];
    tensor.width = 1;
    for (int i = 1; i < view.shape.rank(); ++i) tensor.width *= view.shape[i];
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      switch (view.dtype) {
        case DType::kF32:
          tensor.values.push_back(view.as<float>()[i]);
          break;
        case DType::kBF16:
          tensor.values.push_back(FloatFromBf16(view.as<uint16_t>()[i]));
          break;
        case DType::kI32:
          tensor.values.push_back(static_cast<float>(view.as<int32_t>()[i]));
          break;
        default:
          FAIL() << name << " has dtype " << DTypeName(view.dtype);
      }
    }
  }

  bool Has(int layer, const std::string& name) const { return tensors_.contains({layer, name}); }
  const Tensor& Get(int layer, const std::string& name) const {
    static const Tensor kNone;
    const auto found = tensors_.find({layer, name});
    EXPECT_NE(found, tensors_.end()) << "layer " << layer << ", " << name << " was not observed";
    return found == tensors_.end() ? kNone : found->second;
  }
  const std::map<std::pair<int, std::string>, Tensor>& tensors() const { return tensors_; }

 private:
  std::map<std::pair<int, std::string>, Tensor> tensors_;
};

}  // namespace dsv4::test
