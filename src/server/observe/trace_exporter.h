// Traces of requests for an OpenTelemetry collector (OTLP over HTTP, JSON): how long a request waited, how long its prompt was read and
// how long its answer took.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dsv4::server {

struct RequestTrace {
  using Time = std::chrono::system_clock::time_point;
  std::string traceparent;  // The header that the client sent (W3C Trace Context); or empty.
  std::string request_id;
  std::string route;
  std::string_view end;  // "done", "error", "disconnected".
  Time start = {};
  Time admitted = {};  // Where it came so far, as the next one.
  Time first_token = {};
  Time finish = {};
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;
};

// Sends in the background; a collector that is slow or gone costs traces and a line in the log, never a request.
class TraceExporter {
 public:
  // `endpoint` is "http://HOST:PORT", with or without the path (/v1/traces). InvalidArgument for anything else.
  static Result<std::unique_ptr<TraceExporter>> Open(const std::string& endpoint, const std::string& version);
  // Sends what is there, for two seconds at most.
  ~TraceExporter();
  // From any thread.
  void Export(RequestTrace trace);

 private:
  class Impl;
  explicit TraceExporter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The spans of one request as a JSON list: the whole of it, then queue, prefill and decode as far as it came. For tests.
std::string SpansOf(const RequestTrace& trace);

}  // namespace dsv4::server
