// Streaming writer of NumPy .npy files (format version 1.0): float32, C order, two dimensions.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace dsv4::apps {

// Rows go to a temporary file beside the target; Finish moves it into place, so a reader never sees half a file. Without
// Finish the temporary file is removed.
class NpyWriter {
 public:
  static Result<NpyWriter> Create(const std::string& path, int64_t num_rows, int64_t num_columns);
  NpyWriter(NpyWriter&&) = default;
  NpyWriter& operator=(NpyWriter&&) = default;
  ~NpyWriter();

  // A whole number of rows, in order.
  Status Append(std::span<const float> values);
  // Errors if fewer or more rows were appended than announced.
  Status Finish();

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  NpyWriter() = default;

  std::string path_;
  std::string temporary_path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  int64_t num_values_left_ = 0;
};

}  // namespace dsv4::apps
