// dsv4_timing: times the model on workloads, for bench/compare. Reads one workload a line on standard input,
//   {"depth_ids": [id, ...], "state_file": "path", "sequences": 1, "steps": [[[id, ...], ...], ...]}
// and answers each with one line,
//   {"seconds": [of every step], "read_bandwidth": bytes a second}
// Numbers of sequences and tokens are known before: on a GPU their memory is in the plan, as in `dsv4 bench`.
// A step has one list of ids a sequence. All sequences start from the state that has read `depth_ids`, which
// is kept in `state_file`. llama_timing.py answers the seconds for llama.cpp. The bandwidth is that of the
// machine right after the steps. On a shared one it changes from second to second, and figures without it
// cannot be compared.
//
// The time of a step is that of Model::Step: from token ids to logits in memory, without sampling.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "backend/cpu/machine_bounds.h"
#include "base/json.h"
#include "base/parallel.h"
#include "io/content_digest.h"
#include "model/runtime/model.h"

namespace dsv4::bench {
namespace {

constexpr int64_t kFillChunk = 512;

[[noreturn]] void Fail(const std::string& message) {
  fmt::print(stderr, "dsv4_timing: {}\n", message);
  std::exit(1);
}

template <typename T>
T Require(Result<T> result) {
  if (!result.has_value()) Fail(result.error().ToString());
  return std::move(*result);
}

void Require(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

// Appends one chunk to each of the first chunks.size() sequences. Returns the seconds it took.
double TimedStep(model::Model& model, std::vector<kv::SequenceState>& sequences,
                 const std::vector<std::vector<int32_t>>& chunks) {
  if (chunks.size() > sequences.size()) Fail("a step has more chunks than there are sequences");
  std::vector<model::SequenceChunk> batch;
  for (size_t i = 0; i < chunks.size(); ++i) batch.push_back({.state = &sequences[i], .tokens = chunks[i]});
  const auto start = std::chrono::steady_clock::now();
  const auto output = model.Step(batch);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (!output.has_value()) Fail(output.error().ToString());
  return elapsed.count();
}

// The state that has read `ids`: from `file` when that holds one of this model and length, else computed and
// written there.
kv::Snapshot StateAfter(model::Model& model, const std::vector<int32_t>& ids, const std::string& file) {
  const uint64_t origin = Require(model.Origin(io::ContentDigest::kForever));
  if (std::ifstream in(file, std::ios::binary); in) {
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    auto kept = model.DeserializeSnapshot(std::as_bytes(std::span(bytes)), origin);
    if (kept.has_value() && kept->length() == static_cast<int64_t>(ids.size())) return std::move(*kept);
  }
  std::vector<kv::SequenceState> sequence;
  sequence.push_back(Require(model.NewSequence()));
  for (auto begin = ids.begin(); begin != ids.end();) {
    const auto end = begin + std::min<int64_t>(kFillChunk, ids.end() - begin);
    TimedStep(model, sequence, {{begin, end}});
    begin = end;
  }
  kv::Snapshot snapshot = Require(sequence[0].Snapshot());
  const std::vector<std::byte> bytes = Require(snapshot.Serialize(origin));
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) Fail(fmt::format("{}: cannot write", file));
  return snapshot;
}

// Bytes a second, of the median of three passes.
double ReadBandwidth(const backend::cpu::ReadMemory& memory, ThreadPool& threads) {
  std::array<double, 3> passes;
  for (double& pass : passes) pass = memory.Bandwidth(threads);
  std::ranges::sort(passes);
  return passes[1];
}

// The plan is not exceeded.
void CheckPlanned(const model::MemoryRequest& planned, int64_t num_sequences, size_t depth,
                  const std::vector<std::vector<std::vector<int32_t>>>& steps) {
  std::vector<size_t> lengths(static_cast<size_t>(num_sequences), depth);
  for (const auto& step : steps) {
    for (size_t i = 0; i < std::min(step.size(), lengths.size()); ++i) lengths[i] += step[i].size();
  }
  const auto longest = static_cast<int64_t>(lengths.empty() ? 0 : std::ranges::max(lengths));
  if (num_sequences <= planned.num_sequences && longest <= planned.context) return;
  Fail(fmt::format("workload: {} sequences of up to {} tokens, wanted at most {} of {} (SEQUENCES CONTEXT)",
                   num_sequences, longest, planned.num_sequences, planned.context));
}

std::vector<double> Run(model::Model& model, const Json& workload, const model::MemoryRequest& planned) {
  const auto depth_ids = workload.at("depth_ids").get<std::vector<int32_t>>();
  const auto num_sequences = workload.at("sequences").get<int64_t>();
  const auto steps = workload.at("steps").get<std::vector<std::vector<std::vector<int32_t>>>>();
  CheckPlanned(planned, num_sequences, depth_ids.size(), steps);
  std::vector<kv::SequenceState> sequences;
  for (int64_t i = 0; i < num_sequences; ++i) {
    sequences.push_back(Require(model.NewSequence()));
  }
  if (!depth_ids.empty()) {
    const kv::Snapshot state = StateAfter(model, depth_ids, workload.at("state_file").get<std::string>());
    for (kv::SequenceState& sequence : sequences) Require(sequence.Restore(state));
  }
  std::vector<double> seconds;
  for (const auto& step : steps) seconds.push_back(TimedStep(model, sequences, step));
  return seconds;
}

int Main(int argc, char** argv) {
  apps::ModelFlags flags;
  model::MemoryRequest planned;
  if (argc >= 4) flags.num_threads = std::atoi(argv[2]), flags.numerics = argv[3];
  if (argc >= 6) planned = {.num_sequences = std::atoll(argv[4]), .context = std::atoll(argv[5])};
  if (argc >= 7) flags.backend = argv[6];
  if (argc >= 8) flags.experts = argv[7];
  if (argc >= 9) flags.gpu_memory = std::atof(argv[8]);
  const bool known = (flags.numerics == "release" || flags.numerics == "plain") &&
                     (flags.backend == "cpu" || flags.backend == "cuda");
  if (argc < 6 || argc > 9 || flags.num_threads < 1 || planned.num_sequences < 1 || planned.context < 1 ||
      !known) {
    Fail(
        "usage: dsv4_timing MODEL THREADS release|plain SEQUENCES CONTEXT [cpu|cuda [EXPERTS [GB OF GPU "
        "MEMORY]]], with workloads of at most SEQUENCES sequences of CONTEXT tokens on standard input");
  }
  flags.model = argv[1];
  // The bandwidth's: a device's backend has none. A thread launches what the GPU does, beside those that
  // multiply experts.
  ThreadPool threads(flags.num_threads);
  if (flags.backend == "cuda") flags.num_threads = std::max(1, flags.num_threads - 1);
  const apps::ModelSource source = Require(apps::ModelSource::Find(flags));
  const ops::Backend backend = Require(apps::MakeBackend(flags));
  // And the state that they start from.
  const model::MemoryRequest with_state{.num_sequences = planned.num_sequences + 1,
                                        .context = planned.context};
  const auto model = Require(apps::LoadModel(flags, source, backend, {}, with_state));
  const backend::cpu::ReadMemory memory = Require(backend::cpu::ReadMemory::Allocate());
  std::cout
      << Json{{"backend", backend.name}, {"numerics", flags.numerics}, {"experts", flags.experts}}.dump()
      << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<double> seconds = Run(*model, Require(ParseJson(line, "workload")), planned);
    const double read_bandwidth = ReadBandwidth(memory, threads);
    std::cout << Json{{"seconds", seconds}, {"read_bandwidth", read_bandwidth}}.dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) { return dsv4::bench::Main(argc, argv); }
