// Writes one safetensors file, streaming: the header first, then the tensors' bytes in order, in pieces of
// any size.
//
// The file is written as "<path>.partial" and renamed only when Finish succeeds. So a crash or a full disk
// never leaves a file that looks whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace dsv4::io {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;

  int64_t num_bytes() const;
};

// Puts `specs` into the order of the data section (see safetensors_layout.h) and returns what stands before
// it: length bytes and header. InvalidArgument for a duplicate name; `path` is for messages.
Result<std::string> LayOutSpecs(const std::string& path, std::vector<TensorSpec>& specs);

class SafetensorsWriter {
 public:
  // Lays the tensors out as LayOutSpecs: specs() says in which order Append expects them. InvalidArgument for
  // a duplicate name; errors of the file system name the path.
  static Result<SafetensorsWriter> Create(const std::string& path, std::vector<TensorSpec> specs);

  SafetensorsWriter(SafetensorsWriter&&) = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = default;

  std::span<const TensorSpec> specs() const { return specs_; }
  // The next bytes of the data section.
  Status Append(std::span<const std::byte> bytes);
  // FailedPrecondition unless exactly the promised bytes were appended.
  Status Finish();

 private:
  struct CloseAndRemove {
    std::string partial_path;
    void operator()(std::FILE* file) const;
  };
  SafetensorsWriter(std::string path, std::vector<TensorSpec> specs,
                    std::unique_ptr<std::FILE, CloseAndRemove> file)
      : path_(std::move(path)), specs_(std::move(specs)), file_(std::move(file)) {}

  std::string path_;
  std::vector<TensorSpec> specs_;
  std::unique_ptr<std::FILE, CloseAndRemove> file_;  // Removed unless Finish renamed it.
  int64_t remaining_bytes_ = 0;
};

}  // namespace dsv4::io
