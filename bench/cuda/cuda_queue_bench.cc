// Time of the host to queue a decode step, replayed and walked, on a runtime of no device
// (tests/cuda/null_runtime.cc). No GPU is wanted, and none of its driver's time is in the figures.
//
//   cuda_queue_bench [LAYERS] [DEPTHS] [BATCHES] [STEPS]
//     Flash's shape without numbers. LAYERS 43 without; DEPTHS, tokens that each sequence holds, 0,8192; BATCHES 1,8,64; STEPS 256 of each
//     kind
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "bench/cuda/queue_times.h"
#include "tests/cuda/flash_sizes.h"

int main(int argc, char** argv) {
  using namespace dsv4;
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  const int num_layers = std::stoi(argument(1, "43"));
  const int steps = std::stoi(argument(4, "256"));
  const ops::Backend backend = bench::Must(backend::MakeCudaBackend({}));
  const auto model = dsv4::testing::MakeFlash(backend, {}, num_layers);
  fmt::print("Flash's shape, {} layers; {} steps of each kind in turns; us of the host\n", num_layers, steps);
  fmt::print("{:>8} {:>6} {:>10} {:>10} {:>10} {:>18} {:>12}\n", "depth", "batch", "walked", "replayed",
             "part of it", "replayed of steps", "mean, all");
  for (const int64_t depth : bench::Numbers(argument(2, "0,8192"))) {
    for (const int64_t batch : bench::Numbers(argument(3, "1,8,64"))) {
      std::vector<kv::SequenceState> states;
      for (int64_t i = 0; i < batch; ++i) {
        states.push_back(bench::Must(model->NewSequence()));
        dsv4::testing::Lengthen(states.back(), depth);
      }
      // Both ratios' entries complete in it several times, in each half of staging memory.
      constexpr int kWarmUp = 1024;
      const bench::QueueTimes times = bench::MeasureQueue(backend, *model, states, kWarmUp, steps);
      fmt::print("{:>8} {:>6} {:>10.1f} {:>10.1f} {:>9.0f}% {:>10} of {:>4} {:>12.1f}\n", depth, batch,
                 times.walked_us, times.replayed_us, 100 * times.replayed_us / times.walked_us,
                 times.num_replayed, times.num_steps, times.all_us);
      std::fflush(stdout);
    }
  }
  const char* const why = backend::ReplayCountersOf(backend).why_no_record;
  if (why != nullptr) fmt::print("the last step that was walked left no record: {}\n", why);
  return 0;
}
