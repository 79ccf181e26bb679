// `dsv4 serve`: the HTTP API. docs/serving.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "session/answer_options.h"

namespace dsv4::engine {
class EngineThread;
}
namespace dsv4::server {
class Service;
}

namespace dsv4::apps {

// A server without its sockets.
struct ServedEngine {
  server::Service& service;
  engine::EngineThread& engine;
  int places = 1;                        // Answers at one time.
  std::function<double()> busy_seconds;  // Taken by steps.
  std::function<bool()> is_lost;         // A file of weights, or a rank, is gone.
};

struct ServeOptions {
  ModelFlags model;
  // How long the model took to load, which no option says.
  std::chrono::duration<double> loaded_in{0.0};
  std::string version;
  std::string revision;  // Chat format; empty: detected.
  // Defaults for requests that do not say: thinking or chat; an effort as `reasoning_effort` has it, empty
  // for the model's own.
  std::string thinking_mode = "thinking";
  std::string effort;
  session::AnswerDefaults defaults;  // Defaults where a request names none.
  std::string thinking_sampling =
      "client";  // "client" or "model": whose temperature and top_p count while thinking.
  bool both_reasoning_fields = false;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string unix_socket;
  std::string tls_certificate;  // PEM files; both or none.
  std::string tls_key;
  std::string name;  // Name of the model; empty: its directory's.
  std::vector<std::string> aliases;
  std::vector<std::string> api_keys;
  std::string api_key_file;           // One a line.
  std::string metric_names = "dsv4";  // ParseMetricNames
  bool open_metrics = false;          // /metrics needs no key.
  std::string kv_events;              // KvPublisherOptions::endpoint; empty: nothing is published.
  std::string kv_events_replay;
  std::string kv_events_form = "maps";  // Or "arrays".
  std::string kv_events_topic;          // Empty: kv@MACHINE:PORT@MODEL.
  int64_t kv_block_tokens = 64;         // EngineOptions::block_tokens
  std::string cors_origin;
  std::vector<std::string> allowed_hosts;  // Further names that requests may call the server; "*": any.
  std::string unknown_fields =
      "warn";           // Or "refuse": what becomes of a request with a field that is not known.
  int64_t context = 0;  // 0: the model's.
  std::optional<int64_t> max_sequences;  // Unset: PlacesFor.
  int64_t max_waiting = 256;
  int64_t max_step_tokens = 0;                       // 0: as many as the model takes in one pass.
  std::optional<int64_t> max_prefill_beside_decode;  // Unset: by the prices of steps.
  double first_token_seconds = 10.0;                 // EngineOptions::first_token_target
  std::optional<double> max_gap_seconds;             // EngineOptions::max_gap
  int64_t state_mib = 0;                             // 0: no limit.
  std::string speculation = "auto";                  // ParseSpeculation
  std::optional<int64_t> prefix_cache_mib;  // Unset: kKeptMib, on a device kOfRoomForKept where that is more.
  int64_t prefix_cache_every = 2048;  // Tokens of a prompt between two kept states; 0: none in its midst.
  std::string prefix_cache_dir;       // Empty: nothing outlives the process.
  int64_t prefix_cache_disk_mib = 10240;
  std::string role = "both";  // Or "prefill", "decode": server::ServerRole.
  bool log_times = true;
  std::string access_log;        // A file, or "-"; empty: none.
  std::string otlp_endpoint;     // http(s)://HOST:PORT; empty: as the OTEL_ variables say.
  std::string responses_dir;     // Empty: stored responses are in memory.
  int64_t responses_mib = 64;    // 0: none is stored.
  std::string batches_dir;       // Empty: no files and batches.
  int64_t batches_mib = 1024;    // Taken by all files.
  double timeout_seconds = 0.0;  // Limit of a request; 0: none.
  int64_t max_body_mib = 24;     // A request has several copies of its text for a moment.
  double client_seconds = 30.0;
  double keep_alive_seconds = 10.0;
  double drain_seconds = 30.0;
  std::optional<double> lame_duck_seconds = {};  // None: 5 in a Kubernetes pod, else 0.
  std::vector<std::string> trusted_proxies;      // TrustedProxies
  std::string learn_experts =
      "auto";  // "on", "off" or "auto": whether choices of experts become the model's profile.
  // Instead of listening; returns the exit code.
  std::function<int(const ServedEngine&)> run = {};
  int64_t verify_every = 0;  // > 0: every so many-th decode token is computed again on the reference backend.
};

// Serves until SIGTERM or SIGINT. Returns the process exit code.
int RunServeCommand(const ServeOptions& options);

}  // namespace dsv4::apps
