// `dsv4 bench` on the command line.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "apps/bench/bench_acceptance.h"
#include "apps/bench/bench_command.h"
#include "apps/bench/bench_runs.h"
#include "apps/bench/bench_server.h"
#include "apps/bench/bench_speculation.h"
#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/shared/expert_flags.h"
#include "comm/loopback_group.h"

namespace dsv4::apps {
namespace {

// Words or tokens of a prompt that is made up: a text of 100 MB.
constexpr int64_t kMostInput = 16'777'216;

// Options only for `bench --server`.
void AddServerBench(CLI::App& bench, ServerBenchOptions& options) {
  CLI::Option* server =
      bench.add_option("--server", options.url, "Load a running server instead: http://HOST:PORT");
  for (const char* other : {"--prefill", "--depth", "--batch", "--rows", "--isa", "--repeat", "--rounds",
                            "--profile", "--explain"}) {
    server->excludes(bench.get_option(other));
  }
  bench.add_option("--api-key", options.api_key, "Of the server")->needs(server);
  CLI::Option* streams = bench
                             .add_option("--streams", options.num_streams,
                                         "Closed loop: clients that ask one request after the other")
                             ->check(CLI::Range(1, 1000))
                             ->needs(server)
                             ->capture_default_str();
  bench.add_option("--rate", options.rate, "Open loop: requests a second")
      ->check(Positive())
      ->needs(server)
      ->excludes(streams);
  bench.add_option("--seconds", options.seconds, "New requests are made for so long")
      ->check(Positive())
      ->needs(server)
      ->capture_default_str();
  CLI::Option* words =
      bench
          .add_option_function<std::vector<int64_t>>(
              "--input-words",
              [&options](const std::vector<int64_t>& bounds) {
                options.fewest_words = bounds.front();
                options.most_words = bounds.back();
                if (bounds.front() < 1 || bounds.back() < bounds.front() || bounds.back() > kMostInput) {
                  throw CLI::ValidationError("--input-words",
                                             fmt::format("wanted A B with 1 <= A <= B <= {}", kMostInput));
                }
              },
              "Prompts of their own for every request, of A to B words")
          ->expected(1, 2)
          ->type_name("A B")
          ->needs(server);
  CLI::Option* tokens =
      bench.add_option("--input-tokens", options.input_tokens, "The same of about N tokens")
          ->check(Positive(kMostInput))
          ->needs(server)
          ->excludes(words);
  bench
      .add_option("--length-spread", options.length_spread,
                  "Lengths of such prompts and of answers differ by up to this part of them")
      ->check(Between(0, 0.99))
      ->needs(tokens);
  CLI::Option* dataset =
      bench
          .add_option("--dataset", options.dataset_path,
                      "Prompts of a file: ShareGPT's array, or one object with 'messages', 'prompt' or "
                      "'conversations' a line; 'output_tokens' counts")
          ->type_name("FILE")
          ->needs(server)
          ->excludes(words)
          ->excludes(tokens);
  CLI::Option* agents =
      bench
          .add_flag("--agents", options.agents,
                    "Sessions whose turns send all that was said and a piece more (--input-tokens, the mean: "
                    "65536; --output-tokens: 400)")
          ->needs(server)
          ->excludes(words)
          ->excludes(dataset)
          ->excludes(bench.get_option("--rate"));
  bench.add_option("--turns", options.turns, "Turns of a session: of N, 2 in N + 1 input tokens are new")
      ->check(CLI::Range(1, 1000))
      ->needs(agents)
      ->capture_default_str();
  bench
      .add_option_function<std::string>(
          "--features",
          [&options](const std::string& name) {
            for (const Feature feature :
                 {Feature::kSchema, Feature::kTool, Feature::kPenalties, Feature::kLogprobs})
              if (name == "mixed" || name == FeatureName(feature)) options.features.push_back(feature);
          },
          "Then the same load with a JSON schema, a strict tool, penalties or log-probabilities, or with "
          "each "
          "of them in a quarter of the streams")
      ->check(CLI::IsMember({"mixed", "schema", "tool", "penalties", "logprobs"}))
      ->needs(server)
      ->excludes(agents);
  bench.add_option("--warm-up", options.warm_up, "Seconds of load in front of the time that is measured")
      ->check(NonNegative())
      ->needs(server);
  bench
      .add_option("--goodput-first-seconds", options.goodput_first,
                  "An answer is good whose first token takes so long at most")
      ->check(Positive())
      ->needs(server);
  bench
      .add_option("--goodput-gap-seconds", options.goodput_gap, "The same of the average time between tokens")
      ->check(Positive())
      ->needs(server);
  bench
      .add_option_function<int64_t>(
          "--output-tokens",
          [&options](const int64_t& count) {
            options.output_tokens = count;
            options.output_tokens_given = true;
          },
          "Of every answer; with --speculation at most")
      ->check(Positive())
      ->default_str("64");
}

// Options only for `bench --speculation`, and the prompts that it and `bench --server` read.
void AddSpeculationBench(CLI::App& bench, SpeculationBenchOptions& options, ServerBenchOptions& server) {
  CLI::Option* speculation =
      bench.add_option("--speculation", options.drafter,
                       "Answer --prompts with and without drafts: auto, suffix[:K], "
                       "mtp[:K] or dspark[:K]; or with --acceptance price steps of the "
                       "last two");
  for (const char* other : {"--prefill", "--batch", "--rows", "--isa", "--rounds", "--profile", "--explain",
                            "--server", "--check"}) {
    speculation->excludes(bench.get_option(other));
  }
  bench
      .add_option_function<std::string>(
          "--prompts", [&](const std::string& path) { options.prompts_path = server.prompts_path = path; },
          "For --server and --speculation: one object with 'messages' a line (default of --server: a mix)")
      ->type_name("FILE");
  for (const char* other : {"--dataset", "--input-words", "--input-tokens", "--agents"})
    bench.get_option("--prompts")->excludes(bench.get_option(other));
  bench
      .add_option("--prompt-seconds", options.prompt_seconds,
                  "With --speculation: a prompt that took so long is not asked for more often than --repeat")
      ->check(CLI::NonNegativeNumber)
      ->needs("--prompts")
      ->needs(speculation)
      ->capture_default_str();
  CLI::Option* acceptance =
      AddNumbers(
          bench, "--acceptance", options.acceptance, Between(0, 1),
          "With --speculation mtp[:K] or dspark[:K] and no prompts: that a draft is right at each place "
          "where those before were")
          ->needs(speculation)
          ->excludes(bench.get_option("--prompts"));
  bench.callback([&bench, speculation, acceptance] {
    const bool prompts = bench.get_option("--prompts")->count() > 0;
    if (speculation->count() > 0 && !prompts && acceptance->count() == 0)
      throw CLI::RequiresError("--speculation", "--prompts or --acceptance");
    const auto depths = bench.get_option("--depth")->count() > 0
                            ? ParseBenchList(bench.get_option("--depth")->as<std::string>(), 0)
                            : std::vector<int64_t>{0};
    if (acceptance->count() > 0 && (!depths || depths->size() != 1))
      throw CLI::ValidationError("--depth", "wanted one depth beside --acceptance");
    if (acceptance->count() > 0 && depths->front() < 1)
      throw CLI::ValidationError("--depth",
                                 "got 0, wanted at least 1 beside --acceptance: a draft follows a token");
    for (const char* of_steps : {"--depth", "--seed"}) {
      if (speculation->count() > 0 && acceptance->count() == 0 && bench.get_option(of_steps)->count() > 0)
        throw CLI::RequiresError(of_steps, "--acceptance beside --speculation");
    }
    for (const char* of_answers : {"--prompts", "--output-tokens"}) {
      if (bench.get_option(of_answers)->count() > 0 && speculation->count() == 0 &&
          bench.get_option("--server")->count() == 0)
        throw CLI::RequiresError(of_answers, "--server or --speculation");
    }
  });
}

// Rank 0 of so many, alone.
Status EnterLoopback(ModelFlags& flags, int num_ranks) {
  if (flags.group != nullptr)
    return InvalidArgument("--loopback-ranks: got several ranks, wanted one process");
  // Other placements exchange parts of unequal length, and what would come back is not such as a rank sends.
  if (flags.placement != "auto" && flags.placement != "tensor") {
    return InvalidArgument(fmt::format(
        "--loopback-ranks: got --placement {}, wanted tensor, which auto is here", flags.placement));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(flags.placed, model::ParsePlacement("tensor", num_ranks));
  DSV4_RETURN_IF_ERROR(CheckExpertsOfRanks(flags));
  flags.group = comm::MirrorGroup(num_ranks);
  return {};
}

}  // namespace

void RegisterBench(Commands& commands) {
  const auto kept = std::make_shared<BenchOptions>();
  const auto loopback_ranks = std::make_shared<int>(0);
  const auto server = std::make_shared<ServerBenchOptions>();
  const auto speculation = std::make_shared<SpeculationBenchOptions>();
  BenchOptions& options = *kept;
  CLI::App& bench = commands.AddOverRanks(
      "bench", "Time prefills and decode steps against the machine's bounds",
      [kept, server, speculation, loopback_ranks](const Invocation& invocation) {
        ModelFlags flags = invocation.model;
        if (*loopback_ranks > 0) {
          if (const Status entered = EnterLoopback(flags, *loopback_ranks); !entered.ok())
            return Fail(entered, kExitBadUsage);
        }
        if (!speculation->acceptance.empty()) {
          const std::vector<int64_t> depths = *ParseBenchList(kept->depth, 0);
          return RunAcceptanceBench({.drafter = speculation->drafter,
                                     .acceptance = speculation->acceptance,
                                     .depth = depths.size() == 1 ? depths[0] : 0,
                                     .seed = kept->seed,
                                     .json = kept->json},
                                    flags);
        }
        if (!speculation->drafter.empty()) {
          speculation->repeat = kept->repeat;
          speculation->output_tokens = server->output_tokens;
          speculation->json = kept->json;
          return RunSpeculationBench(*speculation, invocation.model);
        }
        if (!server->url.empty()) {
          server->seed = kept->seed;
          server->check = kept->check;
          server->json = kept->json;
          if (server->agents && server->input_tokens == 0) server->input_tokens = 65536;
          if (server->agents && !server->output_tokens_given) server->output_tokens = 400;
          return RunServerBench(*server);
        }
        if (kept->rows != "none") kept->prefill = kept->batch = "none";
        kept->model = std::move(flags);
        kept->model.explain = kept->explain;
        return RunBenchCommand(*kept);
      },
      [server, speculation] { return server->url.empty() && speculation->drafter.empty(); });
  commands.RefuseModelOptions(bench, [server] { return !server->url.empty(); });
  const auto list = [](int64_t min) {
    return CLI::Validator(
        [min](const std::string& text) {
          const auto parsed = ParseBenchList(text, min);
          return parsed ? std::string() : parsed.error().message();
        },
        "N,N,...|A..B|none");
  };
  bench.add_option("--prefill", options.prefill, "Prompt lengths")->check(list(1))->capture_default_str();
  bench.add_option("--depth", options.depth, "Tokens that sequences hold when they decode")
      ->check(list(0))
      ->capture_default_str();
  bench.add_option("--batch", options.batch, "Sequences that decode together")
      ->check(list(1))
      ->capture_default_str();
  CLI::Option* rows = bench
                          .add_option("--rows", options.rows,
                                      "Steps of N rows of one sequence, as of drafts that are verified, in "
                                      "place of batches and prompts")
                          ->check(list(1))
                          ->capture_default_str();
  rows->excludes(bench.get_option("--prefill"))->excludes(bench.get_option("--batch"));
  bench
      .add_option("--isa", options.tiers,
                  "Instruction sets of the cpu backend, each run in turn (default: the machine's best)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("ISA,ISA,...")
      ->each([&model = commands.model()](const std::string&) { model.host_option = "--isa"; });
  bench.add_option("--repeat", options.repeat, "Timed runs of a row at least")
      ->check(CLI::Range(1, kMaxRepeat))
      ->capture_default_str();
  bench.add_option("--rounds", options.rounds, "Run all rows N times in turn and merge their steps")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  bench.add_option("--seed", options.seed, "Of the random tokens and rows")
      ->check(Seed())
      ->capture_default_str();
  bench
      .add_option_function<std::string>(
          "--check", [&options](const std::string& value) { options.check = value == "on"; },
          "off: time an unchecked output, and say so")
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str("on");
  bench.add_flag("--profile", options.profile, "Time, share and percent of the bound of every op");
  bench.add_flag("--explain", options.explain, "On a GPU: the kernel of every op and shape, and why");
  bench.add_flag("--json", options.json, "One JSON document on standard output");
  AddServerBench(bench, *server);
  AddSpeculationBench(bench, *speculation, *server);
  AddRankFlags(bench, commands.model(), "latency");
  for (CLI::Option* option : bench.get_options()) {
    if (option->get_group() == kRanksGroup) bench.get_option("--server")->excludes(option);
  }
  CLI::Option* loopback =
      bench
          .add_option(
              "--loopback-ranks", *loopback_ranks,
              "Time what rank 0 of N does by itself: what it sends comes back to it, and nothing is checked")
          ->check(CLI::Range(2, 64));
  for (const char* other : {"--server", "--prompts", "--isa", "--ranks", "--gpus", "--check"})
    loopback->excludes(bench.get_option(other));
  for (const char* of_model : {"--ranks", "--gpus", "--placement", "--for"})
    bench.get_option("--server")->excludes(bench.get_option(of_model));
}

}  // namespace dsv4::apps
