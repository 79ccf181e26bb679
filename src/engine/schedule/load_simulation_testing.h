// LoadSimulation: clients in a closed loop before a machine whose steps have given prices, scheduled as the
// engine does. For tests: it judges the policy without a device.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/prefill_policy.h"

namespace dsv4::engine::testing {

// A machine: seconds of steps at given rows, straight lines between.
struct Machine {
  using Points = std::vector<std::pair<double, double>>;  // Rows and seconds, ascending.
  std::string name;
  Points decode;
  Points mixed;
  double noise =
      0.05;  // A part of every step, either way; and one step of a hundred takes half as long again.
  int64_t pass_tokens = 8192;

  double Seconds(int64_t decode_rows, int64_t prefill) const;
};

struct Client {
  int64_t prompt = 512;
  int64_t answer = 128;
  double begins = 0.0;  // Seconds.
  double pause = 0.0;   // Between an answer and the next request.
  bool counts = true;   // In the figures.
  double spread = 0.0;  // Lengths differ by this part, either way.
};

struct Figures {
  double output_rate = 0.0;  // Tokens a second.
  double prompt_rate = 0.0;
  double first_p50 = 0.0, first_p95 = 0.0, first_max = 0.0;
  double gap_p50 = 0.0, gap_p95 = 0.0, gap_p99 = 0.0;
  int64_t num_answers = 0;
};

// The clients' figures behind the first `warm_up` seconds. `measured`: the policy knows the machine's prices
// when it begins.
Figures Simulate(const Machine& machine, PrefillPolicy policy, const std::vector<Client>& clients,
                 double seconds, bool measured);

// Output tokens a second of clients that send `prompt` tokens and take `answer`, where all read at once and
// then answer at once.
double Bound(const Machine& machine, int64_t streams, int64_t prompt, int64_t answer);

}  // namespace dsv4::engine::testing
