// Report of `dsv4 bench`, as text and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/bench_experts.h"
#include "apps/bench/bench_runs.h"
#include "base/json.h"

namespace dsv4::apps {

// How a backend's output was checked before timing.
struct BenchCheck {
  std::string backend;
  int64_t layers = 0;
  int64_t prefill_tokens = 0;
  int64_t depth = 0;
  double worst_cosine = 0;  // Cosine of a row of logits against the reference's.
  double worst_error = 0;   // Largest difference of a logit, divided by the root mean square of its row.
  double seconds = 0;
};

struct BenchMemory {
  int64_t peak_bytes = 0;     // Peak of the process while the model loads and runs; 0: unknown.
  int64_t weights_bytes = 0;  // All files of the checkpoint.
  int64_t states_bytes = 0;   // Bytes of the sequences of the largest row.
  // Bytes of a GPU at the end, without what the bench takes for itself, with the context and other processes;
  // and the plan. 0: no GPU alone.
  int64_t device_bytes = 0;
  int64_t planned_bytes = 0;
  // On the host, what less is available than at the start: the most that was seen, other processes' too; and
  // the plan. 0: no cached experts.
  int64_t host_bytes = 0;
  int64_t host_planned_bytes = 0;
};

// Kernel of an op of some shape (--explain).
struct BenchKernel {
  std::string op;
  std::string kernel;  // Empty: part of the launch in front.
  std::string reason;
  int64_t count = 0;
};

struct BenchReport {
  std::string model;
  std::string numerics;
  int64_t num_layers = 0;
  int num_threads = 0;
  int loopback_ranks =
      0;  // One of so many ranks, alone (comm/loopback_group.h): its logits are no model's. 0: not so.
  std::vector<std::string> backends;
  std::vector<BenchCheck> checks;  // Empty: unchecked.
  std::vector<BenchRow> rows;
  BenchMemory memory;
  std::optional<BenchExperts> experts;           // Figures where not all are resident.
  std::optional<model::VerifiedSplit> verified;  // Steps behind the load, where it was to choose their split.
  std::vector<BenchKernel> kernels;              // Empty unless asked for.
};

// A ratio of two rows, or a row's percentage of its bound. Only those whose rows were run.
struct BenchSummary {
  std::string what;
  double value = 0;
  std::string unit;
  double bound = 0;   // Bound of the value if only the bytes of the two steps counted; 0: says nothing.
  bool busy = false;  // One of the rows was measured on a busy machine.
};
std::vector<BenchSummary> Summarize(const BenchReport& report);

std::string HeaderText(const BenchReport& report);
// `narrow`: at most 80 columns; what has no room in a row's line then stands in a second one.
std::string RowHeading(bool narrow);
std::string RowText(const BenchRow& row, bool narrow);
std::string ProfileText(const BenchRow& row, bool narrow);
std::string KernelsText(const BenchReport& report);
std::string FooterText(const BenchReport& report, bool narrow);
Json ToJson(const BenchReport& report);

}  // namespace dsv4::apps
