// The dsv4 binary: command line in, exit code out. Each subcommand lives in its own file; this one only wires options.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/bench/bench_command.h"
#include "apps/bench/bench_runs.h"
#include "apps/bench/bench_server.h"
#include "apps/command_line/settings.h"
#include "apps/command_line/shared_flags.h"
#include "apps/command_line/shell_texts.h"
#include "apps/command_line/usage.h"
#include "apps/diagnose/diagnose_command.h"
#include "apps/diagnose/diagnose_page.h"
#include "apps/inspect/inspect_command.h"
#include "apps/run/run_command.h"
#include "apps/serve/serve_command.h"
#include "apps/shared/lost_file.h"
#include "apps/shared/rank_group.h"
#include "apps/shared/speculation_flag.h"
#include "apps/tools/convert_command.h"
#include "apps/tools/encode_command.h"
#include "apps/tools/logits_command.h"
#include "apps/tools/parse_command.h"
#include "apps/tools/synth_command.h"
#include "apps/tools/tokenize_command.h"
#include "base/log.h"
#include "comm/shared_memory.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::apps {
namespace {

void AddRun(CLI::App& app, RunOptions& options) {
  CLI::App& run = *app.add_subcommand("run", "Answer a prompt, or chat on the terminal without one");
  run.add_option(
      "PROMPT,-p,--prompt", options.prompt,
      "The question; what comes through a pipe is added to it; '-': only that; none starts a chat");
  run.add_option("--reasoning", options.reasoning,
                 "show: beside the answer on a terminal, else on standard error; hide; only: no answer")
      ->check(CLI::IsMember({"show", "hide", "only"}))
      ->capture_default_str();
  run.add_flag("-i,--interactive", options.interactive, "A chat; PROMPT is its first message");
  run.add_flag("-q,--quiet", options.quiet, "Nothing but the answer: no progress, no speed");
  run.add_flag("--raw", options.raw, "Continue PROMPT as it is, without the chat template");
  AddConversationFlags(run, options);
  run.add_option("-n,--max-tokens", options.max_tokens, "Answer length at most, reasoning included")
      ->check(Positive())
      ->capture_default_str();
  run.add_option("--stop", options.stop, "End the answer before this text; may be repeated")
      ->allow_extra_args(false);
  CLI::Option* schema = run.add_option("--json-schema", options.json_schema_path,
                                       "The answer is JSON that satisfies the schema in this file");
  run.add_flag("--json-object", options.json_object, "The answer is a JSON object")->excludes(schema);
  run.add_option("--logprobs", options.num_logprobs,
                 "With --json: log-probabilities and the N most probable tokens")
      ->check(CLI::Range(0, 20));
  run.add_option("--verify", options.verify_every,
                 "Compute every N-th decode token again on the reference backend and report drift (0: none)")
      ->check(NonNegative())
      ->capture_default_str();
  run.add_option("--dump", options.dump_path, "Write every tensor of the run into this new directory");
  run.add_option("--speculation", options.speculation, kSpeculationHelp)->capture_default_str();
  AddSamplingFlags(run, options);
}

void AddServe(CLI::App& app, ServeOptions& options) {
  CLI::App& serve = *app.add_subcommand("serve", "Answer HTTP as OpenAI's and Anthropic's APIs do");
  constexpr double kMaxSeconds = 1e9;  // 30 years.
  constexpr double kMaxMib = 1 << 30;
  constexpr double kMaxCount = 1 << 30;
  const auto bound = [](const std::string& name) {
    return name.ends_with("-seconds")               ? kMaxSeconds
           : name.find("-mib") != std::string::npos ? kMaxMib
                                                    : kMaxCount;
  };
  const auto number = [&](const char* name, auto& value, const char* help) {
    serve.add_option(name, value, help)->check(NonNegative(bound(name)))->capture_default_str();
  };
  const auto positive = [&](const char* name, auto& value, const char* help) {
    serve.add_option(name, value, help)->check(Positive(bound(name)))->capture_default_str();
  };
  CLI::Option* host = serve.add_option("--host", options.host, "Address to listen on")->capture_default_str();
  CLI::Option* port = serve.add_option("--port", options.port, "Port (0: a free one)")->capture_default_str();
  serve.add_option("--unix-socket", options.unix_socket, "Listen here instead")
      ->excludes(host)
      ->excludes(port);
  CLI::Option* certificate =
      serve
          .add_option("--tls-certificate", options.tls_certificate,
                      "Speak TLS and show this PEM file: the certificate, then those that vouch for it")
          ->excludes(serve.get_option("--unix-socket"));
  CLI::Option* key = serve.add_option("--tls-key", options.tls_key, "PEM file with its private key");
  certificate->needs(key);
  key->needs(certificate);
  serve.add_option("--name", options.name, "Of the model (default: its directory's)");
  serve
      .add_option("--alias", options.aliases,
                  "A further name that requests may use (*: any); may be repeated")
      ->allow_extra_args(false);
  serve.add_option("--api-key", options.api_keys, "Answer only requests with a key; may be repeated")
      ->allow_extra_args(false);
  serve.add_option("--api-key-file", options.api_key_file, "Keys, one a line");
  serve.add_option("--cors-origin", options.cors_origin, "Pages of this origin may ask (*: any)");
  serve
      .add_option("--revision", options.revision,
                  "Chat format: v4 or v4-0731 (default: detected from the model)")
      ->check(KnownRevision());
  serve
      .add_option("--thinking-mode", options.thinking_mode,
                  "Of requests that do not say: reason before answering, or answer at once")
      ->check(CLI::IsMember({"thinking", "chat"}))
      ->capture_default_str();
  serve.add_option("--effort", options.effort,
                   "Reasoning effort of requests that name none (default: the model's own)");
  serve.add_flag("--both-reasoning-fields", options.both_reasoning_fields,
                 "Chat completions have the reasoning as `reasoning` beside `reasoning_content`");
  number("-c,--context", options.context,
         "Tokens of prompt and answer together (0: as many as the model knows)");
  positive("--max-sequences", options.max_sequences, "Answers at one time");
  positive("--max-waiting", options.max_waiting, "Requests that may wait for their turn");
  number("--max-step-tokens", options.max_step_tokens, "Tokens of a step of the engine (0: those of a pass)");
  positive("--max-prefill-beside-decode", options.max_prefill_beside_decode,
           "Of those for prompts while others are answering");
  serve.add_option("--speculation", options.speculation, kSpeculationHelp)->capture_default_str();
  number("--state-mib", options.state_mib, "Memory of running sequences (0: no limit)");
  number("--prefix-cache-mib", options.prefix_cache_mib, "Memory of states kept for reuse (0: none are)");
  number("--prefix-cache-every", options.prefix_cache_every,
         "Keep the state of a long prompt after so many tokens too (0: no)");
  CLI::Option* prefix_cache_dir =
      serve.add_option("--prefix-cache-dir", options.prefix_cache_dir,
                       "Keep states for reuse in files here too, for after a restart");
  positive("--prefix-cache-disk-mib", options.prefix_cache_disk_mib, "Of those files");
  serve.get_option("--prefix-cache-disk-mib")->needs(prefix_cache_dir);
  number("--timeout-seconds", options.timeout_seconds, "Of a request that names none (0: none)");
  positive("--max-body-mib", options.max_body_mib, "Longest body of a request");
  positive("--client-seconds", options.client_seconds,
           "For a client to send a request, or to take what it is sent; then the connection is closed");
  positive("--keep-alive-seconds", options.keep_alive_seconds,
           "A silent stream shows after so long that it lives");
  number("--drain-seconds", options.drain_seconds, "For running answers to end after SIGTERM");
  number("--verify", options.verify_every,
         "Compute every N-th decode token again on the reference backend; /health and /metrics say what came "
         "of it (0: none)");
}

void AddDiagnose(CLI::App& app, DiagnoseOptions& options) {
  CLI::App& diagnose =
      *app.add_subcommand("diagnose", "Find out why answers are wrong: cheap experiments that decide");
  diagnose
      .add_option("CHECK", options.check,
                  "Which; all: every one, in order, until one makes the rest meaningless")
      ->required()
      ->check(CLI::IsMember(DiagnoseChecks()));
  diagnose.add_option("PROMPT", options.run.prompt,
                      "The question (default: a capital); '-' reads standard input");
  AddConversationFlags(diagnose, options.run);
  diagnose.add_option("--against", options.against_path,
                      "prompt: a rendering, ids or a /tokenize reply of another engine to compare with");
  diagnose.add_option("--log", options.log_path, "stop-set: ids of an answer, to look for a missed turn end");
  diagnose.add_option("--tokens", options.tokens_path,
                      "Checks of the model: these ids instead of the conversation's");
  diagnose
      .add_option("--min-tokens", options.min_tokens,
                  "Checks of the model: repeat shorter ids up to N (0: never)")
      ->check(NonNegative())
      ->capture_default_str();
  diagnose.add_option("--chunk", options.chunk, "decode-prefill: size of the chunks")
      ->check(Positive())
      ->capture_default_str();
  diagnose
      .add_option("--tolerance", options.tolerance,
                  "decode-prefill: relative error that passes (0: bit for bit)")
      ->check(NonNegative())
      ->capture_default_str();
  CLI::Option* with = diagnose.add_option("--with", options.with_path, "compare: a dump of another run");
  diagnose.add_option("--with-backend", options.with_backend, "compare: our run on this backend")
      ->check(CLI::IsMember({"reference", "cpu", "cuda"}))
      ->excludes(with);
  diagnose.add_option("--with-numerics", options.with_numerics, "compare: our run with these numerics")
      ->check(CLI::IsMember({"release", "plain"}))
      ->excludes(with);
  diagnose
      .add_option(
          "--ab", options.ab,
          "compare: our run with OP of VARIANT (reference or a CPU tier); each=VARIANT: every op in turn")
      ->type_name("OP=VARIANT")
      ->excludes(with)
      ->excludes("--with-backend")
      ->excludes("--with-numerics");
  diagnose.add_flag("--shared", options.shared_inputs,
                    "compare: feed each op the other run's inputs: its own error");
  diagnose.add_option("--bound", options.bound, "compare: relative error of an op that passes")
      ->check(NonNegative());
  diagnose.add_option("--dump", options.dump_path,
                      "Write the tensors of one prefill into this new directory");
  diagnose.add_option("--html", options.html_path, "Write the report as one page with plots to this file");
  diagnose.add_option("--layer", options.layer, "visible: this layer only");
  diagnose.add_option("--position", options.position, "visible: show this position (default: the last)");
  AddSamplingFlags(diagnose, options.run);
}

void AddLogits(CLI::App& app, LogitsOptions& options) {
  CLI::App& logits = *app.add_subcommand("logits", "Write the logits of every position of a token file");
  logits.add_option("--tokens", options.tokens_path, "Token ids: a JSON list, or separated by white space")
      ->required();
  logits.add_option("--output", options.output_path, ".npy file, float32 [num_tokens, vocab_size]")
      ->required();
  logits
      .add_option("--decode-from", options.decode_from, "The first N tokens as prefill, the rest one by one")
      ->check(NonNegative());
  logits.add_option("--dump", options.dump_path, "Write every tensor of the run into this new directory");
  logits.add_option("--chunk", options.chunk, "Prefill chunk size")->check(Positive());
}

void AddInspect(CLI::App& app, InspectOptions& options, ModelFlags& flags) {
  CLI::App& inspect =
      *app.add_subcommand("inspect", "Shapes, formats, layer kinds, tokenizer and memory plan of a model");
  inspect.add_option("-c,--context", options.context, "The memory plan is for sequences of N tokens")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_option("--batch", options.batch, "and for N of them at a time")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_option("--ranks", flags.num_ranks, "and for each of N ranks")
      ->check(CLI::Range(0, comm::kMaxSharedMemoryRanks))
      ->capture_default_str();
  AddPlacementFlag(inspect, flags);
  inspect
      .add_option("--rank-memory", options.rank_memory,
                  "GB of a rank; 0: this machine's, divided by the ranks")
      ->check(NonNegative())
      ->capture_default_str();
  inspect.add_option("--rank-bandwidth", options.rank_bandwidth, "GB/s at which a rank reads")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_option("--rank-wait", options.rank_wait, "Microseconds that an exchange among ranks takes")
      ->check(NonNegative())
      ->capture_default_str();
  inspect.add_flag("--json", options.json, "One JSON document on standard output");
}

void AddSynth(CLI::App& app, SynthOptions& options) {
  CLI::App& synth = *app.add_subcommand("synth", "Write a random checkpoint of a real or small shape");
  synth.add_option("DIR", options.directory, "Where to; absent or empty")->required();
  synth.add_option("--shape", options.shape, "Dimensions")
      ->check(CLI::IsMember(model::SyntheticShapes()))
      ->capture_default_str();
  synth.add_option("--format", options.format, "How the weights are stored")
      ->check(CLI::IsMember(model::SyntheticFormatNames()))
      ->capture_default_str();
  synth.add_option("--layers", options.num_layers, "Only the first N layers (0: all)")
      ->check(NonNegative())
      ->capture_default_str();
  synth.add_option("--seed", options.seed, "The same seed gives the same checkpoint")->capture_default_str();
  synth.add_option("--tokenizer", options.tokenizer,
                   "tokenizer.json to copy beside the weights (default: the small model's)");
}

void AddConvert(CLI::App& app, ConvertCommandOptions& options) {
  CLI::App& convert = *app.add_subcommand("convert", "Rewrite a checkpoint in other weight formats");
  convert.add_option("SRC", options.source, "Checkpoint directory, in any dialect")->required();
  convert.add_option("DST", options.destination, "Where to; absent or empty")->required();
  convert.add_option("--experts", options.experts, "Format of the routed experts")
      ->check(CLI::IsMember({"keep", "nvfp4", "mxfp4", "fp8", "bf16"}))
      ->capture_default_str();
  convert.add_option("--dense", options.dense, "Format of attention, shared experts and indexer")
      ->check(CLI::IsMember({"keep", "fp8", "nvfp4", "bf16"}))
      ->capture_default_str();
  convert
      .add_option("--scales", options.scales,
                  "Scales of 4-bit blocks that cannot be exact: mse searches, amax does not")
      ->check(CLI::IsMember({"mse", "amax"}))
      ->capture_default_str();
  convert.add_option("--max-shard-bytes", options.max_shard_bytes, "Files are cut at this size")
      ->check(Positive())
      ->capture_default_str();
  convert.add_flag("--json", options.json, "One JSON document on standard output");
}

// What is only for `bench --server`.
void AddServerBench(CLI::App& bench, ServerBenchOptions& options) {
  CLI::Option* server =
      bench.add_option("--server", options.url, "Load a running server instead: http://HOST:PORT");
  for (const char* other :
       {"--prefill", "--depth", "--batch", "--isa", "--repeat", "--rounds", "--profile"}) {
    server->excludes(bench.get_option(other));
  }
  bench.add_option("--api-key", options.api_key, "Of the server")->needs(server);
  bench.add_option("--prompts", options.prompts_path, "One object with 'messages' a line (default: a mix)")
      ->needs(server);
  bench
      .add_option("--streams", options.num_streams,
                  "Closed loop: clients that ask one request after the other")
      ->check(CLI::Range(1, 1000))
      ->needs(server)
      ->capture_default_str();
  bench.add_option("--rate", options.rate, "Open loop: requests a second")->check(Positive())->needs(server);
  bench.add_option("--seconds", options.seconds, "New requests are made for so long")
      ->check(Positive())
      ->needs(server)
      ->capture_default_str();
  bench.add_option("--output-tokens", options.output_tokens, "Of every answer")
      ->check(Positive())
      ->needs(server)
      ->capture_default_str();
}

void AddBench(CLI::App& app, BenchOptions& options, ServerBenchOptions& server_options) {
  CLI::App& bench =
      *app.add_subcommand("bench", "Time prefills and decode steps against the machine's bounds");
  const auto list = [](int64_t min) {
    return CLI::Validator(
        [min](const std::string& text) {
          const auto parsed = ParseBenchList(text, min);
          return parsed ? std::string() : parsed.error().message();
        },
        "N,N,...|none");
  };
  bench.add_option("--prefill", options.prefill, "Prompt lengths")->check(list(1))->capture_default_str();
  bench.add_option("--depth", options.depth, "Tokens that sequences hold when they decode")
      ->check(list(0))
      ->capture_default_str();
  bench.add_option("--batch", options.batch, "Sequences that decode together")
      ->check(list(1))
      ->capture_default_str();
  bench
      .add_option("--isa", options.tiers,
                  "Instruction sets of the cpu backend, each run in turn (default: the machine's best)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("ISA,ISA,...");
  bench.add_option("--repeat", options.repeat, "Timed runs of a row at least")
      ->check(CLI::Range(1, kMaxRepeat))
      ->capture_default_str();
  bench.add_option("--rounds", options.rounds, "Run all rows N times in turn and merge their steps")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  bench.add_option("--seed", options.seed, "Of the random tokens and rows")->capture_default_str();
  bench
      .add_option_function<std::string>(
          "--check", [&options](const std::string& value) { options.check = value == "on"; },
          "off: time an unchecked output, and say so")
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str("on");
  bench.add_flag("--profile", options.profile, "Time, share and percent of the bound of every op");
  bench.add_flag("--json", options.json, "One JSON document on standard output");
  AddServerBench(bench, server_options);
}

int Main(int argc, char** argv) {
  CLI::App app("dsv4: a native inference engine for DeepSeek-V4");
  app.set_version_flag("-V,--version", VersionText());
  app.require_subcommand(1);
  app.fallthrough();
  ModelFlags model;
  AddModelFlags(app, model);
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "What goes to standard error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.add_flag_callback(
      "-v,--verbose", [&log_level] { log_level = "info"; }, "The same as --log-level info");

  RunOptions run;
  ServeOptions serve;
  DiagnoseOptions diagnose;
  LogitsOptions logits;
  EncodeOptions encode;
  ParseOptions parse;
  TokenizeOptions tokenize;
  ConvertCommandOptions convert;
  InspectOptions inspect;
  SynthOptions synth;
  BenchOptions bench;
  ServerBenchOptions server_bench;
  AddRun(app, run);
  AddServe(app, serve);
  AddDiagnose(app, diagnose);
  AddLogits(app, logits);
  AddInspect(app, inspect, model);
  AddSynth(app, synth);
  AddConvert(app, convert);
  AddBench(app, bench, server_bench);
  for (const char* command : {"run", "serve", "logits", "bench"})
    AddRankFlags(*app.get_subcommand(command), model);

  CLI::App& encode_app = *app.add_subcommand("encode", "Render the conversations of a case file");
  encode_app
      .add_option("--cases", encode.cases_path, "File in the layout of tests/fixtures/encoding-cases.json")
      ->required();
  CLI::App& parse_app = *app.add_subcommand("parse", "Parse the completions of a case file");
  parse_app
      .add_option("--cases", parse.cases_path, "File in the layout of tests/fixtures/parsing-cases.json")
      ->required();
  parse_app.add_flag("--lenient", parse.lenient, "Recover from what a model gets wrong, as a server does");
  CLI::App& tokenize_app =
      *app.add_subcommand("tokenize", "The tokens of a text, or of the texts of a case file");
  tokenize_app.add_option("--tokenizer", tokenize.tokenizer_path, "tokenizer.json (default: the model's)");
  CLI::Option* text = tokenize_app.add_option("TEXT", tokenize.text, "The text; '-' reads standard input");
  tokenize_app
      .add_option("--cases", tokenize.cases_path, "File in the layout of tests/fixtures/tokenizer-cases.json")
      ->excludes(text);
  tokenize_app.add_flag("--json", tokenize.json, "One JSON document on standard output");
  std::string shell;
  CLI::App& completion_app =
      *app.add_subcommand("completion", "A script that completes commands and options in a shell");
  completion_app.add_option("SHELL", shell, "Which shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  std::string page;
  CLI::App& man_app = *app.add_subcommand("man", "The manual page of dsv4 or of one of its commands");
  man_app.add_option("COMMAND", page, "Which command (default: dsv4 itself)");
  AddSettings(app);
  DescribeUsage(app);

  std::vector<std::string> words = ExpandHelpWords(argc, argv);
  try {
    // CLI11 wants the words without the program's name, the last one first.
    app.name("dsv4");
    std::vector<std::string> reversed(words.rbegin(), std::prev(words.rend()));
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? kExitOk : kExitBadUsage;
  }
  SetLogLevel(log_level);
  if (app.got_subcommand("completion")) {
    fmt::print("{}", CompletionScript(app, shell));
    return kExitOk;
  }
  if (app.got_subcommand("man")) {
    const std::vector<CLI::App*> found =
        app.get_subcommands([&](const CLI::App* each) { return each->get_name() == page; });
    if (found.empty() && !page.empty()) {
      return Fail(InvalidArgument("man: no command '" + page + "'"), kExitBadUsage);
    }
    const CLI::App* command = found.empty() ? nullptr : found.front();
    fmt::print("{}", ManualPage(app, command));
    return kExitOk;
  }

  std::unique_ptr<RankGroup> ranks;
  if (app.got_subcommand("run") || app.got_subcommand("serve") || app.got_subcommand("logits") ||
      (app.got_subcommand("bench") && server_bench.url.empty())) {
    auto entered = RankGroup::Enter(model, std::vector<std::string>(argv, argv + argc), DSV4_VERSION);
    if (!entered) {
      const bool usage = entered.error().code() == StatusCode::kInvalidArgument;
      return Fail(entered.error(), usage ? kExitBadUsage : kExitRunFailed);
    }
    ranks = std::move(*entered);
    if (model.group != nullptr && model.group->rank() > 0) return RunFollower(model);
  }

  if (app.got_subcommand("run")) {
    run.model = model;
    return RunRunCommand(run);
  }
  if (app.got_subcommand("serve")) {
    serve.model = model;
    serve.version = DSV4_VERSION;
    return RunServeCommand(serve);
  }
  if (app.got_subcommand("diagnose")) {
    diagnose.run.model = model;
    diagnose.command_line = CommandLine(argc, argv);
    diagnose.version = DSV4_VERSION;
    return RunDiagnoseCommand(diagnose);
  }
  if (app.got_subcommand("logits")) {
    logits.model = model;
    return RunLogitsCommand(logits);
  }
  if (app.got_subcommand("inspect")) {
    inspect.model = model;
    return RunInspectCommand(inspect);
  }
  if (app.got_subcommand("bench")) {
    if (!server_bench.url.empty()) {
      server_bench.seed = bench.seed;
      server_bench.check = bench.check;
      server_bench.json = bench.json;
      return RunServerBench(server_bench);
    }
    bench.model = model;
    return RunBenchCommand(bench);
  }
  if (app.got_subcommand("convert")) {
    convert.num_threads = model.num_threads;
    return RunConvertCommand(convert);
  }
  if (app.got_subcommand("synth")) return RunSynthCommand(synth);
  if (app.got_subcommand("encode")) return RunEncodeCommand(encode);
  if (app.got_subcommand("parse")) return RunParseCommand(parse);
  if (app.got_subcommand("tokenize")) {
    tokenize.model = model;
    return RunTokenizeCommand(tokenize);
  }
  return kExitBadUsage;
}

}  // namespace
}  // namespace dsv4::apps

namespace {

// Of all exceptions only two may come from any place and any thread: this one, and that of a thread that cannot be started. Says so
// without asking for memory.
void Say(std::string_view text) { static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size())); }
void SayThatMemoryRanOut() { Say("dsv4: memory ran out\n"); }

std::terminate_handler default_terminate = nullptr;

[[noreturn]] void Terminate() {
  try {
    if (const std::exception_ptr exception = std::current_exception()) std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    SayThatMemoryRanOut();
    ::_exit(dsv4::apps::kExitRunFailed);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      Say("dsv4: no thread could be started: no memory for its stack, or too many threads\n");
      ::_exit(dsv4::apps::kExitRunFailed);
    }
  } catch (...) {  // A bug: as ever.
  }
  default_terminate();
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  default_terminate = std::set_terminate(Terminate);  // For other threads.
  dsv4::apps::ReportLostFiles();
  try {
    return dsv4::apps::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    SayThatMemoryRanOut();
    return dsv4::apps::kExitRunFailed;
  }
}
