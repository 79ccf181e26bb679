// Streaming writer of NumPy .npy files (format version 1.0): float32, C order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "io/output_file.h"

namespace dsv4::apps {

// Written whole or not at all, or through a link, pipe or device: io::OutputFile.
class NpyWriter {
 public:
  static Result<NpyWriter> Create(const std::string& path, std::span<const int64_t> shape);

  // Values in order.
  Status Append(std::span<const float> values);
  // Errors if fewer or more values were appended than announced.
  Status Finish();

 private:
  NpyWriter(std::string path, io::OutputFile file, int64_t num_values)
      : path_(std::move(path)), file_(std::move(file)), num_values_left_(num_values) {}

  std::string path_;
  io::OutputFile file_;
  int64_t num_values_left_ = 0;
};

}  // namespace dsv4::apps
