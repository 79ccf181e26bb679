#include "apps/bench_machine.h"

#include <algorithm>

namespace dsv4::apps {
namespace {

double Middle(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

BenchMachine Median(const std::vector<BenchMachine>& measured) {
  std::vector<double> reads;
  std::vector<double> multiply_adds;
  for (const BenchMachine& machine : measured) {
    reads.push_back(machine.read_bandwidth);
    multiply_adds.push_back(machine.multiply_adds);
  }
  return {.read_bandwidth = Middle(std::move(reads)), .multiply_adds = Middle(std::move(multiply_adds))};
}

BenchMachine BenchMeter::Measure() const {
  if (memory_ == nullptr) return {};
  return {.read_bandwidth = memory_->Bandwidth(*threads_),
          .multiply_adds = backend::cpu::MultiplyAddRate(*threads_, isa_)};
}

}  // namespace dsv4::apps
