// `dsv4 serve` on the command line.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/serve/serve_command.h"
#include "apps/serve/serve_flags.h"
#include "apps/shared/speculation_flag.h"
#include "server/http/trusted_proxies.h"

namespace dsv4::apps {
namespace {

constexpr double kMaxSeconds = 1e9;  // 30 years.

// Options of numbers, with the bounds that their names tell.
struct NumberFlags {
  CLI::App& app;

  static double Bound(const std::string& name) {
    constexpr double kMaxMibOrCount = 1 << 30;
    return name.ends_with("-seconds") ? kMaxSeconds : kMaxMibOrCount;
  }
  template <typename Value>
  void Number(const char* name, Value& value, const char* help) {
    app.add_option(name, value, help)->check(NonNegative(Bound(name)))->capture_default_str();
  }
  template <typename Value>
  void AboveZero(const char* name, Value& value, const char* help) {
    app.add_option(name, value, help)->check(Positive(Bound(name)))->capture_default_str();
  }
  // A number, or "auto", which leaves the value unset.
  template <typename Value>
  void Automatic(const char* name, std::optional<Value>& value, bool zero, const char* help) {
    const CLI::Validator check = zero ? NonNegative(Bound(name)) : Positive(Bound(name));
    app.add_option_function<std::string>(
           name,
           [&value](const std::string& text) {
             if (text == "auto") return value.reset();
             value = static_cast<Value>(std::stod(text));
           },
           help)
        ->check([check](std::string text) { return text == "auto" ? std::string() : check(text); },
                zero ? "auto, or 0 or more" : "auto, or more than 0")
        ->default_str("auto");
  }
};

}  // namespace

void AddServedModelFlags(CLI::App& app, ServeOptions& options, ModelFlags& model) {
  NumberFlags flags{app};
  app.add_option("--name", options.name, "Of the model (default: its directory's)");
  app.add_option("--alias", options.aliases, "A further name that requests may use (*: any); may be repeated")
      ->allow_extra_args(false);
  app.add_option("--thinking-mode", options.thinking_mode,
                 "Of requests that do not say: reason before answering, or answer at once")
      ->check(CLI::IsMember({"thinking", "chat"}))
      ->capture_default_str();
  flags.Number("-c,--context", options.context,
               "Tokens of prompt and answer together (0: as many as the model knows)");
  flags.Automatic("--max-sequences", options.max_sequences, false,
                  "Answers at one time (auto: 64 on the host, what memory has room for on a GPU)");
  app.add_option("--speculation", options.speculation, kSpeculationHelp)->capture_default_str();
  flags.Number("--state-mib", options.state_mib, "Memory of running sequences on each rank (0: no limit)");
  flags.Automatic(
      "--prefix-cache-mib", options.prefix_cache_mib, true,
      "Memory of states kept for reuse on each rank (0: none are; auto: 1024, on a GPU a quarter of what is "
      "left beside the weights where that is more)");
  AddRankFlags(app, model, "latency");
}

void RegisterServe(Commands& commands) {
  const auto kept = std::make_shared<ServeOptions>();
  ServeOptions& options = *kept;
  CLI::App& serve = commands.AddOverRanks("serve", "Answer HTTP as OpenAI's and Anthropic's APIs do",
                                          [kept](const Invocation& invocation) {
                                            kept->model = invocation.model;
                                            kept->version = DSV4_VERSION;
                                            return RunServeCommand(*kept);
                                          });
  NumberFlags flags{serve};
  CLI::Option* host = serve.add_option("--host", options.host, "Address to listen on")->capture_default_str();
  CLI::Option* port =
      serve.add_option("--port", options.port, "Port (0: a free one)")->check(Port())->capture_default_str();
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
  serve.add_option("--api-key", options.api_keys, "Answer only requests with a key; may be repeated")
      ->allow_extra_args(false);
  serve.add_option("--api-key-file", options.api_key_file, "Keys, one a line");
  serve
      .add_option("--metric-names", options.metric_names,
                  "Names in /metrics: ours, vLLM's where it has the same metric, or both")
      ->check(CLI::IsMember({"dsv4", "vllm", "both"}))
      ->capture_default_str();
  serve.add_flag("--open-metrics", options.open_metrics, "/metrics needs no API key");
  serve.add_option("--cors-origin", options.cors_origin, "Pages of this origin may ask (*: any)");
  serve
      .add_option(
          "--allowed-host", options.allowed_hosts,
          "A further name that requests may call the server by, where it is on loopback or without keys "
          "(*: any); may be repeated")
      ->allow_extra_args(false);
  serve
      .add_option("--unknown-fields", options.unknown_fields,
                  "Of a request: say those that are not known, once in the log and in a header, or refuse it")
      ->check(CLI::IsMember({"warn", "refuse"}))
      ->capture_default_str();
  serve
      .add_option("--revision", options.revision,
                  "Chat format: v4, v4-0731 or v4.1 (default: detected from the model)")
      ->check(KnownRevision());
  serve.add_option("--effort", options.effort,
                   "Reasoning effort of requests that name none (default: the model's own)");
  serve
      .add_option(
          "--thinking-sampling", options.thinking_sampling,
          "Whose temperature and top_p count while thinking: the client's, or the model's own whatever "
          "it says, as DeepSeek's service has it")
      ->check(CLI::IsMember({"client", "model"}))
      ->capture_default_str();
  flags.Number("--thinking-temperature", options.defaults.temperature_thinking,
               "While thinking, of requests that name none");
  serve
      .add_option("--thinking-tools-top-p", options.defaults.top_p_thinking_with_tools,
                  "While thinking with tools, of requests that name none")
      ->check(Between(0.001, 1))
      ->capture_default_str();
  flags.Number(
      "--max-tokens-chat", options.defaults.max_tokens_chat,
      "Of an answer without thinking, where the request names none (0: what the context has room for)");
  flags.Number("--max-tokens-thinking", options.defaults.max_tokens_thinking, "The same while thinking");
  flags.Number("--max-tokens-max-effort", options.defaults.max_tokens_max_effort, "The same at effort max");
  serve.add_flag("--both-reasoning-fields", options.both_reasoning_fields,
                 "Chat completions have the reasoning as `reasoning` beside `reasoning_content`");
  flags.AboveZero("--max-waiting", options.max_waiting, "Requests that may wait for their turn");
  flags.Number("--max-step-tokens", options.max_step_tokens,
               "Tokens of a step of the engine (0: those of a pass)");
  flags.Automatic("--max-prefill-beside-decode", options.max_prefill_beside_decode, false,
                  "Of those for prompts while others are answering (auto: by the measured prices of steps)");
  flags.Number("--first-token-seconds", options.first_token_seconds,
               "To the first token that are aimed at: older prompts go first then (0: no aim)");
  flags.Automatic(
      "--max-gap-seconds", options.max_gap_seconds, true,
      "A step with answers may take: prompts get as many tokens beside them as keep to it (0: no bound; "
      "auto: an aim of 0.1 on a GPU, no bound on the host)");
  flags.Number("--prefix-cache-every", options.prefix_cache_every,
               "Keep the state of a long prompt after so many tokens too (0: no)");
  CLI::Option* kv_events = serve.add_option(
      "--kv-events", options.kv_events,
      "Publish changes of the prefix cache here, as vLLM does: tcp://*:5557 (prompts are readable in them)");
  serve
      .add_option("--kv-events-replay", options.kv_events_replay,
                  "Send readers here what they have missed: tcp://*:5558")
      ->needs(kv_events);
  serve
      .add_option("--kv-events-form", options.kv_events_form,
                  "Events as vLLM has them: maps since its 0.24, arrays before")
      ->check(CLI::IsMember({"arrays", "maps"}))
      ->needs(kv_events);
  serve
      .add_option("--kv-events-topic", options.kv_events_topic,
                  "Of what is published (default: kv@MACHINE:PORT@MODEL)")
      ->needs(kv_events);
  flags.AboveZero("--kv-block-tokens", options.kv_block_tokens,
                  "Tokens of a block, in which routers count what a prompt shares with kept states");
  CLI::Option* prefix_cache_dir =
      serve.add_option("--prefix-cache-dir", options.prefix_cache_dir,
                       "Keep states for reuse in files here too: for after a restart, and for other servers "
                       "that are given the same directory");
  flags.AboveZero("--prefix-cache-disk-mib", options.prefix_cache_disk_mib, "Of all those files");
  serve.get_option("--prefix-cache-disk-mib")->needs(prefix_cache_dir);
  serve
      .add_option(
          "--role", options.role,
          "prefill: an answer ends when other servers find its prompt's state; decode: answers such prompts")
      ->check(CLI::IsMember({"prefill", "decode", "both"}))
      ->needs(prefix_cache_dir);
  serve.add_flag("!--no-log-times", options.log_times, "Log lines without the time");
  serve.add_option("--access-log", options.access_log,
                   "Append a line for every request to this file (-: standard output)");
  serve.add_option(
      "--otlp-endpoint", options.otlp_endpoint,
      "Send traces of requests to this OpenTelemetry collector: http(s)://HOST:PORT (default: what the "
      "OTEL_ variables say)");
  serve.add_option("--responses-dir", options.responses_dir,
                   "Keep stored responses (previous_response_id) in files here, for after a restart");
  flags.Number("--responses-mib", options.responses_mib,
               "Of all stored responses; the least recently used go (0: none)");
  CLI::Option* batches_dir =
      serve.add_option("--batches-dir", options.batches_dir,
                       "Keep files and batches (/v1/files, /v1/batches) here, and answer the batches");
  flags.AboveZero("--batches-mib", options.batches_mib, "Of those files");
  serve.get_option("--batches-mib")->needs(batches_dir);
  flags.Number("--timeout-seconds", options.timeout_seconds, "Of a request that names none (0: none)");
  flags.AboveZero("--max-body-mib", options.max_body_mib, "Longest body of a request");
  flags.AboveZero(
      "--client-seconds", options.client_seconds,
      "For a client to send a request, or to take what it is sent; then the connection is closed");
  flags.AboveZero("--keep-alive-seconds", options.keep_alive_seconds,
                  "A silent stream shows after so long that it lives");
  flags.Number("--drain-seconds", options.drain_seconds, "For running answers to end after SIGTERM");
  serve
      .add_option(
          "--lame-duck-seconds", options.lame_duck_seconds,
          "After SIGTERM, in front of that: /ready says 503 and requests are still taken (default: 5 in a "
          "Kubernetes pod, else 0)")
      ->check(NonNegative(kMaxSeconds));
  serve
      .add_option("--trusted-proxy", options.trusted_proxies,
                  "A network (10.0.0.0/8) whose X-Forwarded-For names the client, or unix; may be repeated")
      ->allow_extra_args(false)
      ->check([](const std::string& name) { return server::TrustedProxies::Check(name).message(); });
  serve
      .add_option(
          "--learn-experts", options.learn_experts,
          "Keep which experts requests choose, for the next start with --experts; auto: where that changes "
          "no answer")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  flags.Number(
      "--verify", options.verify_every,
      "Compute every N-th decode token again on the reference backend; /health and /metrics say what came "
      "of it (0: none)");
  AddServedModelFlags(serve, options, commands.model());
}

}  // namespace dsv4::apps
