// Reading tests/golden: op files, .npy arrays and token lists (README.md there says what they hold). Broken
// fixtures are test failures, so these throw.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/weight.h"
#include "io/mapped_file.h"
#include "tensor/tensor.h"

namespace dsv4::testing {

// tests/golden, seen from the source root, where tests run.
std::filesystem::path GoldenDirectory();

// float32 .npy, C order.
struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
NpyArray ReadNpy(const std::filesystem::path& path);

// A JSON file.
Json ReadJson(const std::filesystem::path& path);

// One case of an op file: tensors by operand name, scalars by key.
class OpCase {
 public:
  OpCase(std::string name, Json scalars) : name_(std::move(name)), scalars_(std::move(scalars)) {}
  void Add(const std::string& operand, TensorView stored) { tensors_.emplace(operand, stored); }

  const std::string& name() const { return name_; }
  const Json& scalars() const { return scalars_; }
  bool Has(const std::string& operand) const { return tensors_.contains(operand); }
  // The bytes as stored; aligned, read-only.
  TensorView Stored(const std::string& operand) const;
  // A writable host copy in `dtype`: floats convert exactly or with one rounding, I64 to I32 or I64.
  TensorView Copy(const std::string& operand, DType dtype);
  // A zeroed host tensor.
  TensorView New(DType dtype, Shape shape);
  // The values of a stored operand as float.
  std::vector<float> Floats(const std::string& operand) const;
  std::vector<int64_t> Integers(const std::string& operand) const;
  // The weight whose tensors are named like a checkpoint's suffixes after `prefix` ("", "experts.0.w1.").
  Weight StoredWeight(const std::string& prefix, ActivationQuant activation, int64_t block_rows = 128,
                      int64_t block_cols = 128) const;

 private:
  std::string name_;
  Json scalars_;
  std::map<std::string, TensorView> tensors_;
  std::vector<Buffer> buffers_;
};

// All cases of ops/<op>.safetensors. Keeps the file mapped.
class OpFile {
 public:
  explicit OpFile(const std::string& op);
  std::vector<OpCase>& cases() { return cases_; }
  OpCase& Case(const std::string& name);

 private:
  std::unique_ptr<io::MappedFile> file_;
  std::vector<Buffer> copies_;
  std::vector<OpCase> cases_;
};

// The values of a tensor of any float dtype or I32, in order.
std::vector<float> ToFloats(const TensorView& view);

}  // namespace dsv4::testing
