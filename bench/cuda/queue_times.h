// How long the host takes to queue a decode step that chooses its tokens on the device: replayed and walked
// in turns, in one run.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "bench/cuda/must.h"
#include "model/runtime/model.h"

namespace dsv4::bench {

// "1,8,64"; "none" is none.
inline std::vector<int64_t> Numbers(const std::string& text) {
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin < text.size() && text != "none";) {
    const size_t end = std::min(text.find(',', begin), text.size());
    numbers.push_back(std::stoll(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers;
}

struct QueueTimes {
  double replayed_us = 0;  // Medians of the steps that were replayed,
  double walked_us = 0;    // and of those that were walked because replay was off.
  double all_us = 0;       // Mean of the steps with replay on, those among them that were walked included.
  int num_replayed = 0;
  int num_steps = 0;  // With replay on.
};

inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Each step reads what the one in front chose, and is queued before that has been waited for. Every sequence
// grows by `warm_up` and twice `steps` tokens; replay is on at the end.
inline QueueTimes MeasureQueue(const ops::Backend& device, model::Model& model,
                               std::vector<kv::SequenceState>& states, int warm_up, int steps) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTurn = 16;  // Steps of each kind at a time.
  constexpr sampling::ChoiceParams kGreedy{.temperature = 0.0F};
  std::vector<model::DecodeChunk> chunks;
  for (kv::SequenceState& state : states) chunks.push_back({.state = &state, .token = 1, .choice = kGreedy});
  std::unique_ptr<model::QueuedStep> now = Must(model.QueueDecode(chunks, {}));
  for (size_t i = 0; i < states.size(); ++i) chunks[i].follows = static_cast<int64_t>(i);
  QueueTimes times;
  std::vector<double> replayed;
  std::vector<double> walked;
  double all = 0;
  backend::SetReplay(device, true);
  for (int i = 0; i < warm_up + 2 * steps; ++i) {
    const bool replay = i < warm_up || (i - warm_up) / kTurn % 2 == 0;
    backend::SetReplay(device, replay);
    const int64_t before = backend::ReplayCountersOf(device).replayed;
    const auto begin = Clock::now();
    std::unique_ptr<model::QueuedStep> next = Must(model.QueueDecode(chunks, {}));
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    Must(now->Wait());
    now = std::move(next);
    if (i < warm_up) continue;
    if (!replay) {
      walked.push_back(us);
      continue;
    }
    all += us;
    ++times.num_steps;
    if (backend::ReplayCountersOf(device).replayed > before) replayed.push_back(us);
  }
  Must(now->Wait());
  backend::SetReplay(device, true);
  times.num_replayed = static_cast<int>(replayed.size());
  times.replayed_us = MedianOf(std::move(replayed));
  times.walked_us = MedianOf(std::move(walked));
  times.all_us = all / std::max(1, times.num_steps);
  return times;
}

}  // namespace dsv4::bench
