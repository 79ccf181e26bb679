// PrefillPolicy before machines of known prices: what clients would see, against what the machine allows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/schedule/load_simulation_testing.h"

namespace dsv4::engine {
namespace {

using testing::Client;
using testing::Figures;
using testing::Machine;
using testing::Simulate;

// One H200, 12 layers of Flash with NVFP4 experts (bench/HISTORY.md).
Machine H200() {
  return {.name = "H200",
          .decode = {{1, 1.75e-3},
                     {32, 9.24e-3},
                     {48, 11.42e-3},
                     {64, 12.69e-3},
                     {72, 18.19e-3},
                     {96, 31.02e-3},
                     {128, 33.53e-3},
                     {192, 36.08e-3},
                     {256, 38.18e-3}},
          .mixed = {{1, 1.75e-3},
                    {32, 9.24e-3},
                    {64, 12.69e-3},
                    {96, 31.2e-3},
                    {512, 36.8e-3},
                    {1024, 42.3e-3},
                    {2048, 58.2e-3},
                    {4096, 94.7e-3},
                    {8192, 180e-3}}};
}

// The same without the step behind 64 rows.
Machine SmoothH200() {
  return {
      .name = "H200 without the step at 64 rows",
      .decode = {{1, 1.75e-3}, {32, 9.24e-3}, {64, 12.69e-3}, {96, 14.6e-3}, {128, 15.7e-3}, {256, 17.9e-3}},
      .mixed = {{1, 1.75e-3},
                {32, 9.24e-3},
                {64, 12.69e-3},
                {128, 15.7e-3},
                {512, 22e-3},
                {1024, 30e-3},
                {2048, 47e-3},
                {4096, 80e-3},
                {8192, 148e-3}}};
}

// Two cores and models/tiny: every row costs the same.
Machine TwoCores() {
  return {.name = "2 cores",
          .decode = {{1, 2.3e-3}, {64, 23e-3}, {256, 85e-3}},
          .mixed = {{1, 2.3e-3}, {64, 20e-3}, {512, 132e-3}},
          .pass_tokens = 512};
}

constexpr double kGap = 0.1;

PrefillPolicy Policy(const Machine& machine, double gap, int64_t fixed = 0) {
  return PrefillPolicy({.max_step_tokens = machine.pass_tokens, .max_beside_decode = fixed, .max_gap = gap});
}

std::vector<Client> Streams(int64_t count, int64_t prompt, int64_t answer) {
  std::vector<Client> clients;
  for (int64_t i = 0; i < count; ++i) clients.push_back({.prompt = prompt, .answer = answer, .pause = 1e-3});
  return clients;
}

void Print(const std::string& machine, const std::string& load, double bound, const Figures& figures) {
  fmt::print(
      "{:34} {:24} {:6.0f} tok/s, {:3.0f} % of {:5.0f}; first token {:6.3f} / {:6.3f} s; next {:5.1f} / "
      "{:5.1f} / {:5.1f} ms\n",
      machine, load, figures.output_rate, 100.0 * figures.output_rate / bound, bound, figures.first_p50,
      figures.first_p95, 1e3 * figures.gap_p50, 1e3 * figures.gap_p95, 1e3 * figures.gap_p99);
}

Figures Served(const Machine& machine, const std::vector<Client>& clients, double gap,
               const std::string& load, double bound, bool measured = true, int64_t fixed = 0) {
  const Figures figures = Simulate(machine, Policy(machine, gap, fixed), clients, 40, measured);
  Print(machine.name, load, bound, figures);
  return figures;
}

TEST(LoadSimulation, AServerIsNearlyAsFastAsItsMachine) {
  for (const Machine& machine : {H200(), SmoothH200()}) {
    for (const int64_t streams : {1, 4, 16, 64, 128, 256}) {
      const double bound = testing::Bound(machine, streams, 512, 128);
      const Figures figures =
          Served(machine, Streams(streams, 512, 128), kGap, fmt::format("{} x 512/128", streams), bound);
      EXPECT_GE(figures.output_rate, 0.95 * bound);
      EXPECT_LE(figures.first_p50, 0.4);
      EXPECT_LE(figures.first_p95, 1.0);
      EXPECT_LE(figures.gap_p99, 1.1 * kGap);
      EXPECT_LE(figures.gap_p95, streams <= 64 ? 0.075 : 1.1 * kGap);
    }
    for (const int64_t streams : {1, 16, 64, 128}) {
      const double bound = testing::Bound(machine, streams, 4096, 256);
      const Figures figures =
          Served(machine, Streams(streams, 4096, 256), kGap, fmt::format("{} x 4096/256", streams), bound);
      EXPECT_GE(figures.output_rate, 0.9 * bound);
      EXPECT_LE(figures.first_p50, 0.6);
    }
  }
}

TEST(LoadSimulation, WithoutMeasuringFirstAndWithNoise) {
  for (Machine machine : {H200(), SmoothH200()}) {
    const double bound = testing::Bound(machine, 64, 512, 128);
    EXPECT_GE(Served(machine, Streams(64, 512, 128), kGap, "64, nothing measured", bound, false).output_rate,
              0.95 * bound);
    machine.noise = 0.4;
    EXPECT_GE(Served(machine, Streams(64, 512, 128), kGap, "64, noise of 40 %", bound).output_rate,
              0.9 * bound);
  }
}

TEST(LoadSimulation, LengthsOfAllKinds) {
  for (const Machine& machine : {H200(), SmoothH200()}) {
    for (const int64_t streams : {16, 64, 128, 256}) {
      std::vector<Client> clients = Streams(streams, 512, 128);
      for (Client& client : clients) client.spread = 0.9;
      const double bound = testing::Bound(machine, streams, 512, 128);
      const Figures figures =
          Served(machine, clients, kGap, fmt::format("{} of 50 to 970 / 13 to 243", streams), bound);
      EXPECT_GE(figures.output_rate, 0.85 * bound);
      EXPECT_LE(figures.first_p95, 0.3);
    }
  }
}

TEST(LoadSimulation, AShortQuestionBesideLongPrompts) {
  for (const Machine& machine : {H200(), SmoothH200()}) {
    std::vector<Client> clients(8, Client{.prompt = 16384, .answer = 256, .counts = false});
    clients.push_back({.prompt = 40, .answer = 30, .begins = 0.3, .pause = 0.7, .spread = 0.5});
    EXPECT_LE(Served(machine, clients, kGap, "40/30 beside 8 x 16k", 30.0).first_max, 0.4);
    clients.insert(clients.end(), 32, Client{.prompt = 512, .answer = 256, .counts = false});
    EXPECT_LE(Served(machine, clients, kGap, "40/30 beside that and 32", 30.0).first_max, 0.4);
  }
}

// A fixed number of prompt tokens is good for one load or another.
TEST(LoadSimulation, FixedNumbers) {
  const double bound = testing::Bound(H200(), 64, 512, 128);
  for (const int64_t fixed : {96, 512, 2048, 8192})
    Served(H200(), Streams(64, 512, 128), 0, fmt::format("64 x 512/128, {} fixed", fixed), bound, true,
           fixed);
}

TEST(LoadSimulation, TwoCoresAreServedAsByTheNumberThatSuitsThem) {
  for (const int64_t streams : {1, 16, 64}) {
    for (const int64_t prompt : {40, 200, 600}) {
      const double bound = testing::Bound(TwoCores(), streams, prompt, 64);
      const auto load = [&](const char* how) { return fmt::format("{} x {}/64, {}", streams, prompt, how); };
      const Figures fixed = Served(TwoCores(), Streams(streams, prompt, 64), 0, load("96"), bound, false, 96);
      const Figures figures = Served(TwoCores(), Streams(streams, prompt, 64), 0, load("auto"), bound, false);
      EXPECT_GE(figures.output_rate, 0.99 * fixed.output_rate);
      EXPECT_LE(figures.first_p50, 1.02 * fixed.first_p50);
      EXPECT_LE(figures.first_p95, 1.02 * fixed.first_p95);
      EXPECT_LE(figures.gap_p95, 1.1 * fixed.gap_p95);
      EXPECT_LE(figures.gap_p99, 1.1 * fixed.gap_p99);
    }
  }
}

}  // namespace
}  // namespace dsv4::engine
