// Common parts of the op benchmarks: the machine with its bounds, timing, printing, random operands.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/machine_bounds.h"
#include "formats/weight.h"
#include "ops/op_table.h"

namespace dsv4::bench {

struct Machine {
  ops::Backend backend;
  backend::cpu::ReadMemory memory;
  double multiply_adds;  // A second.
};

// Ends the program.
[[noreturn]] void Fail(const std::string& message);
void Require(const Status& status);

// Time of calls, and the machine's reading rate meanwhile.
struct Timing {
  double seconds;         // The median call.
  double read_bandwidth;  // Bytes a second, of the median pass.
};
// Calls and passes over the machine's memory in turns, so that a bandwidth that changes from second to second
// changes for both. It makes at least half a second of calls and five of them, after one that is not counted.
Timing Time(const Machine& machine, const std::function<void()>& run);

// One line: time, bytes and their rate, multiply-adds and theirs, each in percent of the machine's.
void Print(const Machine& machine, const std::string& what, const Timing& timing, double bytes,
           double products);

// Memory in huge pages, as that of a model is.
template <typename T>
struct HugePages {
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard's name.
  static T* allocate(size_t count) {
    constexpr size_t kHugePage = size_t{2} << 20;
    void* const memory = ::operator new (count * sizeof(T), std::align_val_t{kHugePage});
    ::madvise(memory, count * sizeof(T), MADV_HUGEPAGE);  // Speed only.
    return static_cast<T*>(memory);
  }
  static void deallocate(T* memory, size_t) { ::operator delete (memory, std::align_val_t{size_t{2} << 20}); }
  bool operator==(const HugePages&) const = default;
};
using Bytes = std::vector<uint8_t, HugePages<uint8_t>>;

// A weight of random codes that owns its bytes.
struct RandomWeight {
  Weight weight;
  Bytes data;
  Bytes scale;

  int64_t num_bytes() const { return static_cast<int64_t>(data.size() + scale.size()); }
};

// format: nvfp4, nvfp4-subnormal (its scales below 2^-6), mxfp4, fp8 (blocks of 128 x 128) or bf16.
// `activation` of FP8 and MXFP4 weights is that of the release.
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
