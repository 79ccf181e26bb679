// The engine's verify mode: healthy runs are clean, faults in the backend's ops are reported, and the engine
// waits for nothing.
#include "diag/verifier.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <iostream>
#include <limits>
#include <mutex>
#include <set>

#include "apps/run/run_command.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/json.h"
#include "diag/hooked_backend.h"
#include "engine/engine.h"
#include "engine/engine_thread.h"
#include "io/checkpoint.h"
#include "model/arch/architecture.h"
#include "server/api/served_model_testing.h"
#include "server/service.h"
#include "tests/diag/seeded_faults.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

using diag::VerifySummary;
using diag::VerifyVerdict;
using model::Numerics;

constexpr const char* kTiny = "models/tiny";
constexpr int64_t kNumLayers = 4;  // One of each kind, and one more.

std::unique_ptr<model::Model> Load(const ops::Backend& backend, Numerics numerics) {
  return std::move(*model::Model::Load(kTiny, backend, {.numerics = numerics, .max_layers = kNumLayers}));
}
ops::Backend Cpu() { return *backend::MakeCpuBackend({.num_threads = 1, .isa = {}}); }

// A model with a verifier beside it.
struct Verified {
  std::unique_ptr<model::Model> model;
  diag::Verifier verifier;

  explicit Verified(const ops::Backend& backend, const diag::VerifierOptions& options = {.max_queued = 1000},
                    const ops::Backend& reference = backend::MakeReferenceBackend(1),
                    Numerics numerics = Numerics::kRelease)
      : model(Load(backend, numerics)), verifier(Load(reference, numerics), options) {}

  // Answers of `max_tokens` to prompts of these lengths, in one batch.
  std::vector<Status> Answer(const std::vector<int64_t>& prompts, int64_t max_tokens) {
    engine::Engine engine(*model, {.watcher = &verifier}, {});
    for (const int64_t length : prompts) {
      engine::Request request;
      for (int64_t i = 0; i < length; ++i) {
        request.prompt.push_back(static_cast<int32_t>((i * i * 37 + i * 11 + length) % 5120));
      }
      request.max_tokens = max_tokens;
      request.sampling.seed = 5;
      EXPECT_TRUE(engine.Submit(std::move(request)).has_value());
    }
    std::vector<Status> ends;
    while (!engine.idle()) {
      for (const engine::Event& event : engine.Step()) {
        if (event.kind == engine::Event::Kind::kFinished) ends.push_back(event.status);
      }
    }
    return ends;
  }
};

TEST(Verifier, TheStateAndTheTokenAreThoseOfTheStep) {
  for (const Numerics numerics : {Numerics::kRelease, Numerics::kPlain}) {
    Verified run(Cpu(), {.max_queued = 1000}, Cpu(), numerics);
    run.Answer({1, 5, 130}, 8);
    const VerifySummary summary = run.verifier.Finish();
    EXPECT_EQ(summary.num_decoded,
              3 * 7 + 1);  // The first token comes from the prompt, the one of 1 by a decode step.
    EXPECT_EQ(summary.num_verified, summary.num_decoded);
    EXPECT_EQ(summary.worst_error, 0) << ToText(summary);  // The same arithmetic: bit for bit.
    EXPECT_EQ(summary.num_top1_changed, 0);
    EXPECT_EQ(summary.verdict(), VerifyVerdict::kClean);
  }
}

TEST(Verifier, AHealthyBackendIsClean) {
  for (const Numerics numerics : {Numerics::kRelease, Numerics::kPlain}) {
    Verified run(Cpu(), {.every = 3, .max_queued = 1000}, backend::MakeReferenceBackend(1), numerics);
    run.Answer({40, 127}, 15);
    const VerifySummary summary = run.verifier.Finish();
    std::cout << "  " << ToText(summary) << "\n";
    EXPECT_EQ(summary.num_decoded, 28);
    EXPECT_EQ(summary.num_sampled, 10);  // 0, 3, .. 27.
    EXPECT_EQ(summary.num_verified, 10);
    EXPECT_EQ(summary.verdict(), VerifyVerdict::kClean) << ToText(summary);
  }
}

// Faults that change what a decode step computes. Those in what it stores show in later steps, on both sides.
TEST(Verifier, FaultsInOpsAreDrift) {
  {
    const model::ModelConfig config = *model::LoadModelConfig(kTiny);
    SetScene({config, *model::LoadWeights(*io::Checkpoint::Open(kTiny), config, {})}, 0);
  }
  const std::set<std::string> seen = {"YaRN amplitude in the softmax scale",
                                      "gate and up swapped",
                                      "groups of wo_a swapped",
                                      "weight_scale_2 dropped",
                                      "embedding of the next id",
                                      "final norm missing",
                                      "02-comb-straight",
                                      "12-no-inverse-rope",
                                      "22-router-softmax"};
  size_t num_seeded = 0;
  for (const OpFault& fault : SeededOpFaults()) {
    if (!seen.contains(fault.name)) continue;
    ++num_seeded;
    ops::Backend backend = Cpu();
    fault.seed(backend.table);
    Verified run(backend);
    run.Answer({150}, 9);
    const VerifySummary summary = run.verifier.Finish();
    std::cout << fmt::format("  {:40} {}\n", fault.name, ToText(summary));
    EXPECT_EQ(summary.num_verified, 8);
    EXPECT_EQ(summary.verdict(), VerifyVerdict::kDrift) << fault.name;
  }
  EXPECT_EQ(num_seeded, seen.size());
}

TEST(Verifier, LogitsThatAreNoNumbersAreDrift) {
  ops::Backend backend = Cpu();
  backend.table.hc_head = [](ops::OpContext& context, const ops::HcHeadArgs& args) {
    std::vector<double> values = Values(args.streams);
    values[0] = std::numeric_limits<double>::quiet_NaN();
    SetValues(args.streams, values);
    return Right().hc_head(context, args);
  };
  Verified run(backend);
  run.Answer({1}, 2);
  const VerifySummary summary = run.verifier.Finish();
  EXPECT_GE(summary.num_verified, 1);
  EXPECT_TRUE(std::isinf(summary.worst_error));
  EXPECT_EQ(summary.verdict(), VerifyVerdict::kDrift);
}

TEST(Verifier, OneStepSaysTooLittleUnlessItIsUnlike) {
  Verified run(Cpu());
  run.Answer({20}, 2);
  const VerifySummary summary = run.verifier.Finish();
  EXPECT_EQ(summary.num_verified, 1);
  EXPECT_EQ(summary.verdict(), VerifyVerdict::kTooFewSteps);
}

// A reference backend that waits in its first op until it is told to go on.
class SlowReference {
 public:
  SlowReference() : backend_(backend::MakeReferenceBackend(1)), scope_(backend_, Hooks()) {}
  const ops::Backend& backend() const { return backend_.backend(); }
  void WaitUntilEntered() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entered_; });
  }
  void Resume() {
    const std::lock_guard lock(mutex_);
    go_on_ = true;
    changed_.notify_all();
  }

 private:
  diag::OpHooks Hooks() {
    diag::OpHooks hooks;
    hooks.embed = [this](const auto& inner, const ops::EmbedArgs& args) -> Status {
      std::unique_lock lock(mutex_);
      entered_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return go_on_; });
      return inner(args);
    };
    return hooks;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool entered_ = false;
  bool go_on_ = false;
  diag::HookedBackend backend_;
  diag::HookedBackend::Scope scope_;
};

TEST(Verifier, TheEngineWaitsForNothingAndWhatFindsNoRoomIsCounted) {
  SlowReference slow;
  Verified run(Cpu(), {.max_queued = 3}, slow.backend());
  EXPECT_EQ(run.Answer({30}, 12).size(), 1U);  // To its end, although nothing is verified yet.
  slow.WaitUntilEntered();
  // The wait can be ended: the step in progress is not done, the queue is dropped.
  int asked = 0;
  const VerifySummary early = run.verifier.Finish([&] { return ++asked == 2; });
  EXPECT_EQ(early.num_decoded, 11);
  EXPECT_EQ(early.num_sampled, 11);
  EXPECT_EQ(early.num_verified, 0);
  EXPECT_EQ(early.num_dropped, 10);
  slow.Resume();
  const VerifySummary late = run.verifier.Finish();
  EXPECT_EQ(late.num_verified + late.num_dropped, late.num_sampled);
  EXPECT_EQ(late.num_verified, 1);
  run.Answer({30}, 3);
  EXPECT_EQ(run.verifier.Finish().num_verified, 3);
}

TEST(Verifier, WhatTheReferenceCannotComputeIsReported) {
  ops::Backend broken = backend::MakeReferenceBackend(1);
  broken.table.attention = [](ops::OpContext&, const ops::AttentionArgs&) {
    return Status(StatusCode::kInternal, "broken");
  };
  Verified run(Cpu(), {.max_queued = 1000}, broken);
  const std::vector<Status> ends = run.Answer({30}, 6);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_TRUE(ends[0].ok());
  const VerifySummary summary = run.verifier.Finish();
  EXPECT_EQ(summary.num_verified, 0);
  EXPECT_EQ(summary.num_dropped, summary.num_sampled);
  EXPECT_NE(ToText(summary).find("broken"), std::string::npos) << ToText(summary);
  EXPECT_EQ(summary.verdict(), VerifyVerdict::kDrift);
}

TEST(Verifier, AStepThatFailsIsNoDrift) {
  static int num_calls;
  num_calls = 0;
  ops::Backend backend = Cpu();
  backend.table.embed = [](ops::OpContext& context, const ops::EmbedArgs& args) {
    return ++num_calls == 4 ? Status(StatusCode::kInternal, "broken") : Right().embed(context, args);
  };
  Verified run(backend);
  const std::vector<Status> ends = run.Answer({30}, 6);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_FALSE(ends[0].ok());
  const VerifySummary summary = run.verifier.Finish();
  EXPECT_EQ(summary.num_sampled, 3);
  EXPECT_EQ(summary.num_verified, 2);
  EXPECT_EQ(summary.num_dropped, 1);
  EXPECT_NE(summary.verdict(), VerifyVerdict::kDrift);
}

// `dsv4 run --verify 1 --json`: exit code and report, of a healthy backend and of one that is not.
TEST(RunVerify, ExitCodeAndReportSayWhatWasFound) {
  apps::RunOptions options;
  options.model.model = kTiny;
  options.model.num_threads = 1;
  options.model.max_layers = kNumLayers;
  options.prompt = "Tell me";
  options.raw = true;
  options.json = true;
  options.max_tokens = 40;
  options.sampling.temperature = 0;
  options.verify_every = 1;
  const auto run = [&](bool faulty) {
    ::testing::internal::CaptureStdout();
    const int exit_code = apps::RunRunCommand(options, [&](const apps::ModelFlags& flags) {
      Result<ops::Backend> backend = apps::MakeBackend(flags);
      if (faulty) {
        backend->table.moe_combine = [](ops::OpContext& context, const ops::MoeCombineArgs& args) {
          SetValues(args.shared, std::vector<double>(static_cast<size_t>(args.shared.num_elements()), 0.0));
          return Right().moe_combine(context, args);
        };
      }
      return backend;
    });
    return std::pair(exit_code, Json::parse(::testing::internal::GetCapturedStdout()).at("verify"));
  };
  const auto [clean, healthy] = run(false);
  EXPECT_EQ(clean, 0);
  EXPECT_EQ(healthy.at("verdict"), "clean") << healthy;
  EXPECT_EQ(healthy.at("decoded"), healthy.at("sampled"));
  EXPECT_EQ(healthy.at("sampled"), healthy.at("verified").get<int>() + healthy.at("dropped").get<int>());
  const auto [found, drifted] = run(true);
  EXPECT_EQ(found, 1);
  EXPECT_EQ(drifted.at("verdict"), "drift") << drifted;
}

TEST(Verifier, AServerThatDriftsIsNotHealthy) {
  const std::unique_ptr<model::Model> model = Load(Cpu(), Numerics::kRelease);
  const server::ServedModel served = server::MakeTinyServedModel("models/tiny/tokenizer.json", "v4");
  engine::EngineThread engine(
      std::make_unique<engine::Engine>(*model, engine::EngineOptions{}, std::vector<uint8_t>()), {}, {});
  server::Metrics metrics("tiny", "0");
  server::Verification found{.text = "verify: so far"};
  server::Service service(served, engine, metrics, {.verification = [&] { return found; }});
  const auto get = [&](const char* path) {
    server::ReplyOutput out;
    service.Handle({.method = "GET", .path = path})->Advance(out);
    return std::make_pair(out.head->status, out.body);
  };
  EXPECT_EQ(get("/health"),
            std::make_pair(200, std::string(R"({"status":"ok","verification":"verify: so far"})")));
  EXPECT_NE(get("/metrics").second.find("dsv4_verify_drift 0"), std::string::npos);
  found = {.drift = true, .text = "verify: drift", .num_verified = 7};
  EXPECT_EQ(get("/health").first, 503);
  EXPECT_NE(get("/health").second.find("verify: drift"), std::string::npos);
  EXPECT_NE(get("/metrics").second.find("dsv4_verify_drift 1"), std::string::npos);
  EXPECT_NE(get("/metrics").second.find("dsv4_verify_steps 7"), std::string::npos);
}

}  // namespace
}  // namespace dsv4::testing
