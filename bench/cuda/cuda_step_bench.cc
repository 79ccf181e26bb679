// Times whole steps of a synthetic model on the GPU: decode at context depths and batch sizes, and prefill.
// Each decode step is waited for and its logits fetched. Then the same is done by steps that choose their
// tokens on the device, with async scheduling. Beside it stand the bytes that a step must read over the copy
// bandwidth measured first, and how many kernels a layer takes. For prefill it is the rate of products over
// those of tensor cores in bf16 and in e4m3, measured in front.
//
//   cuda_step_bench WEIGHTS LAYERS [DEPTHS] [BATCHES] [PREFILLS] [STEPS] [CHUNK] [RANKS] [ROWS] [VOCAB]
//     WEIGHTS   flash,nvfp4-experts and the like: what stands behind synthetic: in dsv4's --weights
//     DEPTHS    tokens that each sequence holds, 0,8192,131072 without; BATCHES 1; PREFILLS none; STEPS 24.
//               With 0 it is a table of ops instead, each timed alone with a wait behind it
//     CHUNK     tokens of one pass through the layers at most, 512 without
//     RANKS     2, 4 or 8: rank 0 of so many in `tensor`, alone. Others are a loopback (comm/loopback_group.h). So exchanges
//               are queued, written, waited for and read as ever, but cross no link and wait for no rank. The numbers are
//               no model's, and nothing is checked. Bytes and bound are those of the rank. Ranks choose entries of a long
//               prompt for unequal numbers of tokens, and loopback ones for as early tokens as rank 0 does. So attention
//               that chooses reads fewer than it would
//     ROWS      packed (without) or wide: how caches are kept (docs/kv-cache.md)
//     VOCAB     tokens of the vocabulary, the shape's without. With at most 4096 a prefill is timed a second time with the logits of all
//               positions. All layers then read them: V4.1's decoder layers read the end of a prompt alone
//
// Exit status 1 where steps queued ahead give fewer tokens a second than a smaller batch of the same depth did.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/groups/cuda_group.h"
#include "bench/cuda/matrix_rate.h"
#include "bench/cuda/must.h"
#include "bench/cuda/queue_times.h"
#include "comm/loopback_group.h"
#include "comm/null_group.h"
#include "diag/op_profile.h"
#include "kv/random_rows.h"
#include "model/arch/architecture.h"
#include "model/planning/memory_plan.h"
#include "model/runtime/model.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Bytes a second, read and written.
double CopyBandwidth(Memory& memory) {
  constexpr size_t kBytes = size_t{4} << 30;
  constexpr int kCopies = 10;
  const Buffer from = Must(memory.Allocate(kBytes));
  const Buffer to = Must(memory.Allocate(kBytes));
  std::byte byte;
  const auto copy = [&](int count) {
    const auto begin = Clock::now();
    for (int i = 0; i < count; ++i) Must(memory.Copy(to.data(), from.data(), kBytes, nullptr));
    Must(memory.CopyToHost(&byte, to.data(), 1, nullptr));
    return Seconds(begin);
  };
  copy(2);
  return 2.0 * kCopies * static_cast<double>(kBytes) / copy(kCopies);
}

class Bench {
 public:
  Bench(const std::string& weights, int64_t num_layers, int64_t chunk, int num_ranks, model::CacheRows rows,
        std::optional<int64_t> vocab_size)
      : device_(Must(backend::MakeCudaBackend({}))),
        hooked_(device_),
        room_(Must(backend::RoomOf(device_.context->memory().device().index))),
        bandwidth_(CopyBandwidth(device_.context->memory())) {
    model::SyntheticOptions options = Must(model::ParseSyntheticName("synthetic:" + weights));
    options.num_layers = num_layers;
    options.vocab_size = vocab_size;
    const auto begin = Clock::now();
    auto checkpoint = Must(model::MakeSyntheticCheckpoint(
        weights, options, static_cast<int>(std::thread::hardware_concurrency())));
    const auto num_bytes = static_cast<double>(checkpoint->num_bytes());
    auto config = Must(model::ParseModelConfig(Must(model::SyntheticConfig(options)), weights));
    model::ModelOptions model_options = {.max_chunk_tokens = chunk, .cache_rows = rows};
    if (config.engram.has_value()) {
      // Every token is a class.
      model_options.token_classes.resize(static_cast<size_t>(config.vocab_size));
      std::iota(model_options.token_classes.begin(), model_options.token_classes.end(), 0);
    }
    model::ModelOptions planned = model_options;
    if (num_ranks > 1) {
      model_options.placement = planned.placement = Must(model::ParsePlacement("tensor", num_ranks));
      planned.group = comm::ImagineGroup(0, num_ranks, num_ranks);
      model_options.group = comm::MirrorGroup(num_ranks);
      model_options.make_device_group = [this](comm::Communicator& hosts, model::DeviceGroupOf) {
        return backend::MakeCudaGroup(device_, hosts, {});
      };
    }
    const auto plan = Must(model::PlanMemory(config, checkpoint, planned, {}));
    planned_without_states_ = plan.weights + plan.step;
    model_ = Must(model::Model::FromCheckpoint(std::move(config), std::move(checkpoint), hooked_.backend(),
                                               model_options));
    fmt::print(
        "{}: copies {:.2f} TB/s, read and written; {} layers of {}, {:.1f} GB{}, {} rows, {:.0f} bytes a "
        "token: made and placed in {:.1f} s\n",
        device_.name, bandwidth_ / 1e12, num_layers, weights, num_bytes / 1e9,
        num_ranks > 1
            ? fmt::format(", of which rank 0 of {} has its part (tensor), the others a loopback", num_ranks)
            : "",
        rows == model::CacheRows::kPacked ? "packed" : "wide", kv::BytesPerToken(model_->cache_layout()),
        Seconds(begin));
    fmt::print("{:<36} {:>10} {:>10} {:>9} {:>7} {:>9} {:>9} {:>9}\n", "step", "us", "us/layer", "MB",
               "bound", "kernels", "a layer", "replayed");
    std::fflush(stdout);
  }

  // Seconds of a step queued ahead; 0 with a table of ops.
  double Decode(int64_t depth, int64_t batch, int steps) {
    std::vector<kv::SequenceState> states;
    for (int64_t i = 0; i < batch; ++i) {
      states.push_back(Must(model_->NewSequence()));
      Must(kv::FillWithRandomRows(states.back(), depth, static_cast<uint64_t>(i)));
    }
    std::vector<std::vector<int32_t>> tokens;
    std::vector<double> seconds;
    backend::CudaCounters before;
    for (int step = 0; step < kWarmUp + steps; ++step) {
      if (step == kWarmUp) before = backend::CountersOf(device_);
      tokens.push_back(RandomTokens(batch));
      const auto begin = Clock::now();
      const model::StepOutput output = Step(states, tokens.back());
      if (step >= kWarmUp) seconds.push_back(Seconds(begin));
      for (const float logit : output.logits) Digest(std::bit_cast<uint32_t>(logit));
    }
    const backend::CudaCounters after = backend::CountersOf(device_);
    // Once more, op by op, for the bytes.
    diag::OpProfile profile(*device_.context);
    constexpr int kCounted = 4;
    for (kv::SequenceState& state : states) Must(state.Rewind(kCounted));
    {
      const diag::HookedBackend::Scope scope(hooked_, profile.Hooks());
      for (int i = kCounted; i > 0; --i) Step(states, tokens[tokens.size() - static_cast<size_t>(i)]);
    }
    if (steps == 0) {
      PrintProfile(profile, kCounted);
      return 0.0;
    }
    const double num_bytes = profile.total_cost().bytes() / kCounted;
    Report(fmt::format("decode, depth {}, batch {}", depth, batch), MedianOf(seconds), num_bytes, before,
           after, steps);
    return DecodeAhead(states, tokens.back(), depth, num_bytes, steps);
  }

  // Each step reads what the one in front chose, greedily, and is queued before that is known.
  double DecodeAhead(std::vector<kv::SequenceState>& states, std::span<const int32_t> first, int64_t depth,
                     double num_bytes, int steps) {
    constexpr sampling::ChoiceParams kGreedy{.temperature = 0.0F};
    std::vector<model::DecodeChunk> chunks;
    for (size_t i = 0; i < states.size(); ++i)
      chunks.push_back({.state = &states[i], .token = first[i], .choice = kGreedy});
    std::unique_ptr<model::QueuedStep> now = Must(model_->QueueDecode(chunks, {}));
    for (size_t i = 0; i < states.size(); ++i) chunks[i].follows = static_cast<int64_t>(i);
    std::vector<double> seconds;
    backend::CudaCounters before;
    // Every list in two variants: places in staging memory take turns.
    for (int step = 0; step < 2 * kWarmUp + steps; ++step) {
      if (step == 2 * kWarmUp) before = backend::CountersOf(device_);
      const auto begin = Clock::now();
      std::unique_ptr<model::QueuedStep> next = Must(model_->QueueDecode(chunks, {}));
      const std::vector<model::ChosenToken> chosen = Must(now->Wait());
      now = std::move(next);
      if (step >= 2 * kWarmUp) seconds.push_back(Seconds(begin));
      for (const model::ChosenToken& token : chosen) Digest(static_cast<uint32_t>(token.id));
    }
    Must(now->Wait());
    now.reset();
    Report(fmt::format("  queued ahead, depth {}, batch {}", depth, states.size()), MedianOf(seconds),
           num_bytes, before, backend::CountersOf(device_), steps);
    const QueueTimes host = MeasureQueue(device_, *model_, states, 2 * kWarmUp, std::max(steps, 32));
    fmt::print(
        "  of which the host took {:.1f} us to queue a step that is replayed, {:.1f} one that is walked: "
        "{:.0f}%; "
        "{} of {} steps were replayed; digest of all logits and tokens so far {:016x}\n",
        host.replayed_us, host.walked_us, 100 * host.replayed_us / host.walked_us, host.num_replayed,
        host.num_steps, digest_);
    std::fflush(stdout);
    return MedianOf(seconds);
  }

  // Bytes of the largest row by the memory plan, and by the device.
  void ReportMemory(int64_t num_sequences, int64_t context) {
    const backend::CudaRoom now = Must(backend::RoomOf(device_.context->memory().device().index));
    const int64_t planned =
        planned_without_states_ + num_sequences * kv::StateBytes(model_->cache_layout(), context);
    fmt::print("memory: {:.2f} GB planned and {:.2f} allowed for scratch, {:.2f} taken\n",
               static_cast<double>(planned) / 1e9, static_cast<double>(room_.scratch) / 1e9,
               static_cast<double>(room_.free - now.free) / 1e9);
  }

  void Prefill(int64_t length, int steps) {
    Prefill(length, steps, model::LogitsRows::kLast);
    constexpr int64_t kMostOfAllPositions = 4096;
    if (model_->config().vocab_size <= kMostOfAllPositions) Prefill(length, steps, model::LogitsRows::kAll);
  }

  void Prefill(int64_t length, int steps, model::LogitsRows rows) {
    const Result<double> rate = Bf16MatrixRate();
    const Result<double> fp8_rate = E4m3MatrixRate();
    std::vector<kv::SequenceState> states;
    states.push_back(Must(model_->NewSequence()));
    std::vector<double> seconds;
    double launches = 0;
    for (int run = 0; run < 4; ++run) {
      states[0].Reset();
      const std::vector<int32_t> tokens = RandomTokens(length);
      const int64_t before = backend::CountersOf(device_).launches;
      const auto begin = Clock::now();
      Step(states, tokens, rows);
      if (run > 0) seconds.push_back(Seconds(begin));
      launches = static_cast<double>(backend::CountersOf(device_).launches - before);
    }
    diag::OpProfile profile(*device_.context);
    states[0].Reset();
    {
      const diag::HookedBackend::Scope scope(hooked_, profile.Hooks());
      Step(states, RandomTokens(length), rows);
    }
    if (steps == 0) PrintProfile(profile, 1);
    const double operations = 2 * profile.total_cost().multiply_adds / MedianOf(seconds);
    Report(fmt::format("prefill {}{}", length, rows == model::LogitsRows::kAll ? ", all positions" : ""),
           MedianOf(seconds), profile.total_cost().bytes(), launches, 0);
    fmt::print("  {:.0f} tok/s; {:.1f} TFLOP/s of products", static_cast<double>(length) / MedianOf(seconds),
               operations / 1e12);
    // Measured by Hopper's machine code alone.
    if (rate && fp8_rate) {
      fmt::print(", {:.1f}% of the {:.0f} that tensor cores gives in bf16, {:.1f}% of the {:.0f} in e4m3",
                 100 * operations / *rate, *rate / 1e12, 100 * operations / *fp8_rate, *fp8_rate / 1e12);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  // Graphs are made when a list of launches comes for the second time, and every fourth step has other ones.
  static constexpr int kWarmUp = 12;

  std::vector<int32_t> RandomTokens(int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(generator_() % static_cast<uint64_t>(model_->config().vocab_size));
    return tokens;
  }

  void Digest(uint32_t value) { digest_ = (digest_ ^ value) * 0x100000001B3; }

  model::StepOutput Step(std::vector<kv::SequenceState>& states, std::span<const int32_t> tokens,
                         model::LogitsRows rows = model::LogitsRows::kLast) {
    const size_t each = tokens.size() / states.size();
    std::vector<model::SequenceChunk> chunks;
    for (size_t i = 0; i < states.size(); ++i)
      chunks.push_back({.state = &states[i], .tokens = tokens.subspan(i * each, each), .logits = rows});
    return Must(model_->Step(chunks));
  }

  void Report(const std::string& name, double seconds, double num_bytes, const backend::CudaCounters& before,
              const backend::CudaCounters& after, int steps) {
    Report(name, seconds, num_bytes, static_cast<double>(after.launches - before.launches) / steps,
           static_cast<double>(after.replayed_lists - before.replayed_lists) /
               static_cast<double>(after.lists - before.lists));
  }
  void Report(const std::string& name, double seconds, double num_bytes, double launches, double replayed) {
    const auto layers = static_cast<double>(model_->num_layers());
    fmt::print("{:<36} {:>10.1f} {:>10.1f} {:>9.1f} {:>6.1f}% {:>9.1f} {:>9.1f} {:>8.0f}%\n", name,
               seconds * 1e6, seconds * 1e6 / layers, num_bytes / 1e6, 100 * num_bytes / bandwidth_ / seconds,
               launches, launches / layers, 100 * replayed);
    std::fflush(stdout);
  }

  void PrintProfile(const diag::OpProfile& profile, int steps) {
    for (const diag::OpTime& op : profile.ops()) {
      fmt::print("  {:<16} {:<28} {:>6} calls {:>9.1f} us, {:>5.1f}%\n", op.op, op.detail, op.calls / steps,
                 op.seconds * 1e6 / static_cast<double>(op.calls),
                 100 * op.cost.bytes() / bandwidth_ / op.seconds);
    }
  }

  ops::Backend device_;
  diag::HookedBackend hooked_;
  backend::CudaRoom room_;  // Before anything else: what copies are measured with stays in the pool.
  double bandwidth_;
  int64_t planned_without_states_ = 0;
  std::unique_ptr<model::Model> model_;
  std::mt19937_64 generator_{1};
  // FNV-1a of all logits and tokens that decode steps gave: equal where two builds give the same bits.
  uint64_t digest_ = 0xCBF29CE484222325;
};

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {
  using namespace dsv4::bench;
  if (argc < 3)
    Die("wanted WEIGHTS LAYERS [DEPTHS] [BATCHES] [PREFILLS] [STEPS] [CHUNK] [RANKS] [ROWS] [VOCAB]");
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  const int num_ranks = std::stoi(argument(8, "1"));
  // Uneven pieces would be waited for that nobody sends.
  if (num_ranks != 1 && num_ranks != 2 && num_ranks != 4 && num_ranks != 8)
    Die(fmt::format("RANKS: got {}, want 1, 2, 4 or 8", num_ranks));
  const std::string rows = argument(9, "packed");
  if (rows != "packed" && rows != "wide") Die(fmt::format("ROWS: got {}, want packed or wide", rows));
  Bench bench(argv[1], std::stoll(argv[2]), std::stoll(argument(7, "512")), num_ranks,
              rows == "packed" ? dsv4::model::CacheRows::kPacked : dsv4::model::CacheRows::kWide,
              argc > 10 ? std::optional(std::stoll(argv[10])) : std::nullopt);
  const int steps = std::stoi(argument(6, "24"));
  const std::vector<int64_t> batches = Numbers(argument(4, "1"));
  int64_t most_sequences = 1;
  int64_t most_tokens = 1;
  bool falls = false;
  for (const int64_t depth : Numbers(argument(3, "0,8192,131072"))) {
    int64_t best_batch = 0;
    double best = 0.0;  // Tokens a second of the batches so far.
    for (const int64_t batch : batches) {
      const double seconds = bench.Decode(depth, batch, steps);
      const double rate = seconds > 0.0 ? static_cast<double>(batch) / seconds : 0.0;
      if (rate > 0.0 && batch > best_batch && rate < best) {
        falls = true;
        fmt::print("depth {}: {:.0f} tokens a second of {} sequences, {:.0f} of {}\n", depth, rate, batch,
                   best, best_batch);
      }
      if (rate > best) {
        best = rate;
        best_batch = batch;
      }
      most_sequences = std::max(most_sequences, batch);
      most_tokens = std::max(most_tokens, depth + 200);
    }
  }
  for (const int64_t length : Numbers(argument(5, "none"))) {
    bench.Prefill(length, steps);
    most_tokens = std::max(most_tokens, length);
  }
  bench.ReportMemory(most_sequences, most_tokens);
  return falls ? 1 : 0;
}
