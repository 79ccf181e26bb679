// The scales of quantised linears, block by block: how they are spread, and whether they could be what a
// quantiser wrote.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "diag/report/plot.h"
#include "diag/report/report.h"
#include "formats/weight.h"

namespace dsv4::diag {

// Statistics of one linear. Values are those that elements are multiplied with, the global scale included.
struct ScaleStatistics {
  int64_t count = 0;        // Blocks; 0 for a weight without scales.
  int64_t num_zero = 0;     // e8m0: 2^-127.
  int64_t num_lowest = 0;   // e4m3: subnormal, where a scale keeps 0 to 2 bits.
  int64_t num_highest = 0;  // e4m3: 448, where larger ones were cut off; e8m0: 2^127.
  double lowest = 0;        // Least of those that are not zero.
  double median = 0;
  double highest = 0;
  double next = 0;  // The highest but one block's.
};
ScaleStatistics MeasureScales(const Weight& weight);

// Complaint about scales that no quantiser writes; empty otherwise. Weights of fewer than 64 blocks are left
// alone.
std::string ScaleComplaint(const Weight& weight, const ScaleStatistics& scales);

// Collects linears by module ("ffn.experts.w1") and layer (-1: outside of the layers).
class ScaleSurvey {
 public:
  void Add(int layer, const std::string& module, const Weight& weight, const ScaleStatistics& scales);
  bool empty() const { return modules_.empty(); }
  Table ModuleTable() const;
  // The routed experts' by layer; no series without quantised experts.
  Plot ExpertPlot() const;

 private:
  struct Sums {
    std::string formats;
    int64_t num_tensors = 0;
    int64_t count = 0;
    int64_t num_zero = 0;
    int64_t num_lowest = 0;
    int64_t num_highest = 0;
    double lowest = 0;
    double highest = 0;
    std::vector<double> medians;
  };
  static void AddTo(Sums& sums, const Weight& weight, const ScaleStatistics& scales);

  std::map<std::string, Sums> modules_;
  std::map<int, Sums> experts_;  // By layer.
};

}  // namespace dsv4::diag
