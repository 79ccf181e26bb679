// What the op benchmarks share: the machine with its bounds, timing, printing, random operands.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/weight.h"
#include "ops/op_table.h"

namespace dsv4::bench {

struct Machine {
  ops::Backend backend;
  double read_bandwidth;  // Bytes a second.
  double multiply_adds;   // A second.
};

// Ends the program.
[[noreturn]] void Fail(const std::string& message);
void Require(const Status& status);

// Median seconds of a call, over at least half a second and five calls, after one that is not counted.
double Median(const std::function<void()>& run);

// One line: time, bytes and their rate, multiply-adds and theirs, each in percent of the machine's.
void Print(const Machine& machine, const std::string& what, double seconds, double bytes, double products);

// A weight of random codes that owns its bytes.
struct RandomWeight {
  Weight weight;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;

  int64_t num_bytes() const { return static_cast<int64_t>(data.size() + scale.size()); }
};

// format: nvfp4, mxfp4, fp8 (blocks of 128 x 128) or bf16. `activation` of FP8 and MXFP4 weights is that of the release.
RandomWeight MakeWeight(std::string_view format, int64_t rows, int64_t cols);

// bf16 numbers, standard normal.
std::vector<uint16_t> Normals(int64_t count);
TensorView View(std::vector<uint16_t>& values, Shape shape);

// The benches; each checks what it times. `wanted` says whether a line is to be run.
using Wanted = std::function<bool(const std::string& what)>;
void BenchLinear(const Machine& machine, const Wanted& wanted);
void BenchGroupedLinear(const Machine& machine, const Wanted& wanted);
void BenchRoutedExperts(const Machine& machine, const Wanted& wanted);
void BenchAttention(const Machine& machine, const Wanted& wanted);

}  // namespace dsv4::bench
