// Metrics: what Prometheus reads at /metrics. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine_thread.h"
#include "engine/prefix_disk.h"
#include "server/observe/verification.h"

namespace dsv4::server {

// Figures of cached experts (docs/expert-tiers.md), since the model was loaded.
struct ExpertCacheStats {
  int64_t slots = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t bytes = 0;
};

// Under which names metrics go out (metric_names.h).
enum class MetricNames : uint8_t { kDsv4, kVllm, kBoth };

// "dsv4", "vllm", "both"; nullopt for anything else.
std::optional<MetricNames> ParseMetricNames(std::string_view text);

class Metrics {
 public:
  Metrics(const std::string& model_id, const std::string& version, MetricNames names = MetricNames::kDsv4);
  ~Metrics();

  // Source of the disk cache's numbers for Text; before the first Text, and must outlive the last.
  void WatchDisk(std::function<engine::PrefixDiskStats()> stats);

  // The same of cached experts.
  void WatchExperts(std::function<ExpertCacheStats()> stats);

  // Tokens whose choices of experts were counted for the model's profile.
  void WatchLearning(std::function<int64_t()> tokens);

  void OnStep(const engine::StepReport& report);
  void OnHttp(std::string_view route, int status);
  void OnFirstToken(double seconds);
  void OnTokens(int64_t count, double seconds_since_last);
  // A field of a request that is not known, by a name out of a bounded set.
  void OnUnknownField(std::string_view name);
  void OnVerification(const Verification& found);
  void OnFinished(std::string_view reason, double seconds);

  // In the text format of Prometheus.
  std::string Text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsv4::server
