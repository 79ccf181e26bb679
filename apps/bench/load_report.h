// LoadReport: figures of a load on a server, in our names and in those of vLLM's `bench serve`.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "apps/bench/bench_server.h"
#include "base/json.h"

namespace dsv4::apps {

// One request that was answered.
struct LoadSample {
  double begin = 0.0;  // Seconds since the load began.
  double first = 0.0;  // Seconds to the first token; 0 without text.
  double seconds = 0.0;
  std::vector<double> gaps;
  int64_t num_prompt = 0;
  int64_t num_cached = 0;  // Reused ones of these.
  int64_t num_output = 0;  // 0 where the server does not count.

  int64_t num_computed() const { return num_prompt - num_cached; }
  // Seconds of an output token behind the first.
  // To the last piece of text, as vLLM's client counts: the end of the stream is no token.
  double SecondsPerToken() const {
    return num_output > 1
               ? std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(num_output - 1)
               : 0.0;
  }
};

struct LoadCounts {
  int64_t refused = 0;
  int64_t failed = 0;
  int64_t wrong = 0;  // Answers that are not those of a quiet server.
  std::string first_error;
  double seconds = 0.0;  // Seconds that were measured, to the end of the last answer.
  // Tokens that came while all clients asked, also of answers that began before or ended behind it.
  double steady_tokens = 0.0;
  double resident_before = 0.0;
  double resident_after = 0.0;
};

Json LoadReport(const ServerBenchOptions& options, const std::vector<LoadSample>& samples,
                const LoadCounts& counts);
// The same for a terminal. `checked`: answers were compared.
void PrintLoadReport(const Json& report, const ServerBenchOptions& options, bool checked);

}  // namespace dsv4::apps
