// Clients in a closed loop, scheduled as the engine does.
#include "engine/schedule/load_simulation_testing.h"

#include <algorithm>
#include <random>

#include "engine/schedule/scheduler.h"

namespace dsv4::engine::testing {
namespace {

double On(const Machine::Points& points, double rows) {
  if (rows <= points.front().first) return points.front().second;
  for (size_t i = 1; i < points.size(); ++i) {
    const auto [rows0, seconds0] = points[i - 1];
    const auto [rows1, seconds1] = points[i];
    if (rows <= rows1) return seconds0 + (seconds1 - seconds0) * (rows - rows0) / (rows1 - rows0);
  }
  return points.back().second * rows / points.back().first;
}

double Percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0.0;
  const auto rank = static_cast<size_t>(share * static_cast<double>(values.size()));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::min(values.size() - 1, rank));
  std::ranges::nth_element(values, nth);
  return *nth;
}

struct Sequence {
  const Client* client = nullptr;
  uint64_t id = 0;
  double arrival = 0.0;
  int64_t left = 0;  // Tokens of the prompt that are not read.
  int64_t answer = 0;
  int64_t given = 0;
  double latest = 0.0;  // When the latest token came.
};

}  // namespace

double Machine::Seconds(int64_t decode_rows, int64_t prefill) const {
  if (prefill == 0) return On(decode, static_cast<double>(decode_rows));
  return std::max(On(mixed, static_cast<double>(decode_rows + prefill)),
                  decode_rows > 0 ? On(decode, static_cast<double>(decode_rows)) : 0.0);
}

double Bound(const Machine& machine, int64_t streams, int64_t prompt, int64_t answer) {
  const int64_t pass = std::min(streams * prompt, machine.pass_tokens);
  const double reading =
      static_cast<double>(streams * prompt) / static_cast<double>(pass) * machine.Seconds(0, pass);
  const double answering = static_cast<double>(answer - 1) * machine.Seconds(streams, 0);
  return static_cast<double>(streams * answer) / (reading + answering);
}

Figures Simulate(const Machine& machine, PrefillPolicy policy, const std::vector<Client>& clients,
                 double seconds, bool measured) {
  std::minstd_rand random(1);
  const auto noisy = [&](double exact) {
    const double part = static_cast<double>(random() % 2001) / 1000.0 - 1.0;
    return exact * (1.0 + machine.noise * part) * (random() % 100 == 0 ? 1.5 : 1.0);
  };
  const auto length = [&](const Client& client, int64_t tokens) {
    const double part = static_cast<double>(random() % 2001) / 1000.0 - 1.0;
    return std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(tokens) * (1.0 + client.spread * part)));
  };
  if (measured) {
    policy.RecordStep(1, 0, machine.Seconds(1, 0));
    for (int64_t rows = PrefillPolicy::kFirstPiece; rows <= machine.pass_tokens; rows *= 2)
      policy.RecordStep(0, rows, machine.Seconds(0, rows));
  }
  std::vector<Sequence> waiting;
  std::vector<Sequence> running;
  std::vector<std::pair<double, const Client*>> to_come;
  for (const Client& client : clients) to_come.emplace_back(client.begins, &client);
  std::vector<double> firsts;
  std::vector<double> gaps;
  Figures figures;
  double now = 0.0;
  uint64_t next_id = 1;
  const double warm_up = seconds / 4;
  double outputs = 0.0;
  double prompts = 0.0;
  while (now < seconds) {
    std::ranges::stable_sort(to_come, {}, [](const auto& request) { return request.first; });
    while (!to_come.empty() && to_come.front().first <= now) {
      const Client* client = to_come.front().second;
      waiting.push_back({.client = client,
                         .id = next_id++,
                         .arrival = to_come.front().first,
                         .left = length(*client, client->prompt),
                         .answer = length(*client, client->answer)});
      to_come.erase(to_come.begin());
    }
    PromptLoad load;
    bool reading = false;
    for (const Sequence& sequence : running) {
      if (sequence.given > 0) ++load.answering;
      if (sequence.left > 0) reading = true;
    }
    for (const Sequence& sequence : waiting) load.Add(sequence.left, now - sequence.arrival);
    if (reading || !policy.Holds(load)) {
      running.insert(running.end(), waiting.begin(), waiting.end());
      waiting.clear();
    }
    if (running.empty()) {
      now = std::max(now + 1e-6, to_come.empty() ? seconds : to_come.front().first);
      continue;
    }
    load = {.answering = load.answering};
    std::vector<Pending> pending;
    for (const Sequence& sequence : running) {
      if (sequence.left > 0) load.Add(sequence.left, now - sequence.arrival);
      // A prompt of one token is no answer.
      pending.push_back({.num_tokens = sequence.given > 0 ? 1 : std::max<int64_t>(sequence.left, 2),
                         .arrival = sequence.id});
    }
    const std::vector<ScheduledChunk> schedule = ScheduleStep(
        pending, {.max_tokens = machine.pass_tokens, .max_prefill_beside_decode = policy.Piece(load)});
    int64_t decode = 0;
    int64_t prefill = 0;
    for (const ScheduledChunk& chunk : schedule)
      (running[chunk.sequence].given > 0 ? decode : prefill) += chunk.num_tokens;
    const double took = noisy(machine.Seconds(decode, prefill));
    policy.RecordStep(decode, prefill, took);
    now += took;
    for (const ScheduledChunk& chunk : schedule) {
      Sequence& sequence = running[chunk.sequence];
      const bool counts = now > warm_up && sequence.client->counts;
      if (sequence.given == 0) {
        sequence.left -= chunk.num_tokens;
        if (counts) prompts += static_cast<double>(chunk.num_tokens);
        if (sequence.left > 0) continue;
        sequence.left = 0;
        if (counts) firsts.push_back(now - sequence.arrival);
      } else if (counts) {
        gaps.push_back(now - sequence.latest);
      }
      ++sequence.given;
      sequence.latest = now;
      if (counts) outputs += 1.0;
      if (sequence.given < sequence.answer) continue;
      if (counts) ++figures.num_answers;
      to_come.emplace_back(now + sequence.client->pause, sequence.client);
    }
    std::erase_if(running, [](const Sequence& sequence) { return sequence.given >= sequence.answer; });
  }
  figures.output_rate = outputs / (now - warm_up);
  figures.prompt_rate = prompts / (now - warm_up);
  figures.first_p50 = Percentile(firsts, 0.5);
  figures.first_p95 = Percentile(firsts, 0.95);
  figures.first_max = Percentile(firsts, 1.0);
  figures.gap_p50 = Percentile(gaps, 0.5);
  figures.gap_p95 = Percentile(gaps, 0.95);
  figures.gap_p99 = Percentile(gaps, 0.99);
  return figures;
}

}  // namespace dsv4::engine::testing
