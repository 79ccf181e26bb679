// Packed cache rows beside wide ones (docs/kv-cache.md): decode steps, a chunk of a prompt, and a state saved
// and restored, at depths of the context. One checkpoint, a model for each way to keep rows; they take turns,
// run by run, so that whatever else the machine does hits both. Depths are filled with random rows. Before
// anything is timed both models' logits are compared, bit for bit.
//
//   cache_rows_bench WEIGHTS LAYERS [DEPTHS] [CHUNK] [ROUNDS] [BACKEND] [THREADS]
//     WEIGHTS   mini, flash,nvfp4-experts and the like: what stands behind synthetic: in dsv4's --weights
//     DEPTHS    0,8192,32768 without;  CHUNK 128: tokens of the prompt's chunk;  ROUNDS 15
//     BACKEND   cpu (without) or cuda;  THREADS of the CPU's backend, 1
// Medians, and of every pair of runs the quotient of wide by packed: more than 1 is for packed rows. Half of
// those lie in the range.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "bench/must.h"
#include "kv/random_rows.h"
#include "kv/snapshot.h"
#include "model/arch/architecture.h"
#include "model/runtime/model.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::bench {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<int64_t> Numbers(const std::string& text) {
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    numbers.push_back(std::stoll(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers;
}

double Quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// One way to keep rows.
struct Side {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<kv::SequenceState> state;
  std::vector<std::byte> saved;
};

class Bench {
 public:
  Bench(const std::string& weights, int64_t num_layers, const ops::Backend& backend, int64_t chunk)
      : chunk_(chunk) {
    model::SyntheticOptions options = Must(model::ParseSyntheticName("synthetic:" + weights));
    options.num_layers = num_layers;
    const auto checkpoint = Must(model::MakeSyntheticCheckpoint(weights, options, 2));
    for (const model::CacheRows rows : {model::CacheRows::kPacked, model::CacheRows::kWide}) {
      model::ModelOptions model_options;
      model_options.max_chunk_tokens = chunk;
      model_options.max_rewind_tokens = std::max<int64_t>(chunk, 64);
      model_options.cache_rows = rows;
      auto config = Must(model::ParseModelConfig(Must(model::SyntheticConfig(options)), weights));
      sides_.push_back(
          {Must(model::Model::FromCheckpoint(std::move(config), checkpoint, backend, model_options)),
           nullptr,
           {}});
    }
    fmt::print("{}: {} layers of {}; bytes a token {:.0f} packed, {:.0f} wide\n", backend.name, num_layers,
               weights, kv::BytesPerToken(sides_[0].model->cache_layout()),
               kv::BytesPerToken(sides_[1].model->cache_layout()));
    fmt::print("{:<28} {:>12} {:>12} {:>8} {:>15}\n", "", "packed us", "wide us", "quotient", "half of them");
  }

  void Run(int64_t depth, int rounds) {
    for (Side& side : sides_) {
      side.state = std::make_unique<kv::SequenceState>(Must(side.model->NewSequence()));
      Must(kv::FillWithRandomRows(*side.state, depth, 11));
    }
    Compare();
    Measure(fmt::format("decode, depth {}", depth), rounds, [&](Side& side) { Step(side, 1, 1); });
    Measure(fmt::format("chunk of {}, depth {}", chunk_, depth), std::max(3, rounds / 3),
            [&](Side& side) { Step(side, chunk_, 2); });
    Measure(fmt::format("save, depth {}", depth), std::max(3, rounds / 3), [&](Side& side) {
      side.saved = Must(Must(side.state->Snapshot()).Serialize(side.model->recipe()));
    });
    Measure(fmt::format("restore, depth {}", depth), std::max(3, rounds / 3), [&](Side& side) {
      (void)Must(side.model->DeserializeSnapshot(side.saved, side.model->recipe()));
    });
    const auto megabytes = [](const Side& side) { return static_cast<double>(side.saved.size()) / 1e6; };
    fmt::print("{:<28} {:>9.2f} MB {:>9.2f} MB {:>8.3f}\n", fmt::format("file, depth {}", depth),
               megabytes(sides_[0]), megabytes(sides_[1]), megabytes(sides_[1]) / megabytes(sides_[0]));
    std::fflush(stdout);
  }

 private:
  // `count` tokens, and taken back.
  std::vector<float> Step(Side& side, int64_t count, int seed) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((i * 7919 + static_cast<size_t>(seed) * 131) %
                                       static_cast<size_t>(side.model->config().vocab_size));
    const model::SequenceChunk chunk{
        .state = side.state.get(), .tokens = tokens, .logits = model::LogitsRows::kLast};
    const auto output = Must(side.model->Step(std::span(&chunk, 1)));
    std::vector<float> logits(output.logits.begin(), output.logits.end());
    Must(side.state->Rewind(count));
    return logits;
  }

  void Compare() {
    for (const int64_t count : {int64_t{1}, chunk_}) {
      const std::vector<float> packed = Step(sides_[0], count, 5);
      const std::vector<float> wide = Step(sides_[1], count, 5);
      if (packed.size() != wide.size() ||
          std::memcmp(packed.data(), wide.data(), packed.size() * sizeof(float)) != 0) {
        Die(fmt::format("logits of a step of {} tokens differ between packed and wide rows", count));
      }
    }
  }

  template <typename RunSide>
  void Measure(const std::string& what, int rounds, const RunSide& run) {
    std::vector<double> seconds[2];
    std::vector<double> quotients;
    for (int round = -1; round < rounds; ++round) {
      double now[2];
      for (int i = 0; i < 2; ++i) {
        // Which of the two is first changes.
        const int which = (round + i) & 1;
        const auto begin = Clock::now();
        run(sides_[static_cast<size_t>(which)]);
        now[which] = std::chrono::duration<double>(Clock::now() - begin).count();
      }
      if (round < 0) continue;
      for (int i = 0; i < 2; ++i) seconds[i].push_back(now[i]);
      quotients.push_back(now[1] / now[0]);
    }
    fmt::print("{:<28} {:>12.1f} {:>12.1f} {:>8.3f} {:>7.3f}..{:.3f}\n", what,
               1e6 * Quantile(seconds[0], 0.5), 1e6 * Quantile(seconds[1], 0.5), Quantile(quotients, 0.5),
               Quantile(quotients, 0.25), Quantile(quotients, 0.75));
    std::fflush(stdout);
  }

  int64_t chunk_;
  std::vector<Side> sides_;
};

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {
  using namespace dsv4;
  using namespace dsv4::bench;
  if (argc < 3) Die("wanted WEIGHTS LAYERS [DEPTHS] [CHUNK] [ROUNDS] [BACKEND] [THREADS]");
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  const std::string name = argument(6, "cpu");
  if (name != "cpu" && name != "cuda") Die(fmt::format("BACKEND: got {}, want cpu or cuda", name));
  const ops::Backend backend =
      name == "cpu" ? Must(backend::MakeCpuBackend({.num_threads = std::stoi(argument(7, "1"))}))
                    : Must(backend::MakeCudaBackend({}));
  Bench bench(argv[1], std::stoll(argv[2]), backend, std::stoll(argument(4, "128")));
  for (const int64_t depth : Numbers(argument(3, "0,8192,32768")))
    bench.Run(depth, std::stoi(argument(5, "15")));
  return 0;
}
