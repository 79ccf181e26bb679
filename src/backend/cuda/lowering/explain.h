// Kernels that a backend has chosen, for people: one line for each op, shape and kernel, in the order in
// which they first came.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dsv4::backend::cuda {

struct Explanation {
  std::string op;      // With its shapes.
  std::string kernel;  // Its file below kernels/; empty: the op became part of the launch in front.
  std::string reason;
  int64_t count = 0;
};

class Explanations {
 public:
  // `log`: each line goes to the log too when it first comes, as a warning so that it shows.
  explicit Explanations(bool log) : log_(log) {}

  void Add(std::string op, std::string kernel, std::string reason);
  const std::vector<Explanation>& lines() const { return lines_; }

 private:
  const bool log_;
  std::vector<Explanation> lines_;
  std::map<std::string, size_t> places_;
};

// "linear [1, 4096] [1024, 4096]: gemm/gemv_stream (up to 8 tokens ...)"
std::string ToString(const Explanation& line);

}  // namespace dsv4::backend::cuda
