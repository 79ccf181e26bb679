// Traces of requests for an OpenTelemetry collector (OTLP over HTTP, protobuf), under the names of the
// conventions for generative models. They say how long a request waited, how long its prompt was read and how
// long its answer took.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::server {

struct RequestTrace {
  using Time = std::chrono::system_clock::time_point;
  std::string traceparent;  // The header that the client sent (W3C Trace Context); or empty.
  std::string tracestate;   // The same.
  std::string request_id;
  std::string method;
  std::string route;           // One of the table's, so that there are few.
  std::string_view operation;  // "chat", "text_completion"; empty: no generation.
  std::string_view end;        // "done", "error", "disconnected", "refused".
  std::string error;           // The message of a failed one.
  int http_status = 0;
  Time start = {};
  Time admitted = {};  // Time of its latest stage, as the next one.
  Time first_token = {};
  Time finish = {};
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;
  int64_t num_reasoning_tokens = 0;
};

// The target of traces, and their choice. The standard's variables say what the command does not.
struct TraceOptions {
  std::string url;                                            // Empty: nowhere.
  std::vector<std::pair<std::string, std::string>> headers;   // For a request to the collector.
  std::vector<std::pair<std::string, std::string>> resource;  // service.name and others.
  std::string certificate;                                    // PEM file of authorities; empty: the system's.
  int64_t timeout_ms = 10'000;
  double ratio = 1.0;          // Share of the requests without a traceparent, or of all.
  bool follows_parent = true;  // A traceparent decides for its request.
  bool is_off = false;         // OTEL_SDK_DISABLED, or an exporter or sampler that is none.
  // `endpoint` is --otlp-endpoint's, "http(s)://HOST:PORT" with or without the path, or empty. `variable`
  // gives those of the environment, null where unset. InvalidArgument names the one that says what is not
  // understood.
  static Result<TraceOptions> Read(const std::string& endpoint,
                                   const std::function<const char*(const char*)>& variable);
};

// Sends in the background; a collector that is slow or gone costs traces and a line in the log, never a
// request.
class TraceExporter {
 public:
  TraceExporter(TraceOptions options, std::string model, std::string version);
  // Sends what is there, for two seconds at most.
  ~TraceExporter();
  // From any thread.
  void Export(RequestTrace trace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether the request's spans are sent: as the client's trace says, or by chance, the same for all spans of a
// trace.
bool IsSampled(const RequestTrace& trace, const TraceOptions& options);

// A body of /v1/traces: of each request the whole of it, then queue, prefill and decode as far as it came.
std::string EncodeTraces(const std::vector<RequestTrace>& traces, const TraceOptions& options,
                         const std::string& model, const std::string& version);

}  // namespace dsv4::server
