#include "server/observe/trace_exporter.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "server/api/json_text.h"
#include "server/api/random_id.h"

namespace dsv4::server {
namespace {

constexpr size_t kMostWaiting = 4096;
constexpr size_t kMostInOne = 256;
constexpr std::chrono::seconds kInterval(1);
constexpr time_t kPatienceSeconds = 2;

struct Target {
  std::string host;
  std::string port;
  std::string path;
};

Result<Target> ReadEndpoint(const std::string& endpoint) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&] {
    return Error(InvalidArgument(fmt::format("got '{}', wanted http://HOST:PORT", endpoint)));
  };
  if (!endpoint.starts_with(kScheme)) return wrong();
  const std::string rest = endpoint.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string authority = rest.substr(0, slash);
  const size_t colon = authority.rfind(':');
  Target target = {.host = authority.substr(0, colon),
                   .port = colon == std::string::npos ? "4318" : authority.substr(colon + 1),
                   .path = slash + 1 < rest.size() ? rest.substr(slash) : "/v1/traces"};
  if (target.host.empty() || target.port.empty()) return wrong();
  return target;
}

// A POST whose reply is only looked at for its status.
Status Post(const Target& target, const std::string& body) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found) != 0)
    return Status(StatusCode::kUnavailable, fmt::format("{}: no such host", target.host));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  const int fd = ::socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
  if (fd < 0) return Status(StatusCode::kUnavailable, "no socket");
  const timeval patience = {.tv_sec = kPatienceSeconds, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Status status;
  const std::string request =
      fmt::format(
          "POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nContent-Length: "
          "{}\r\nConnection: close\r\n\r\n",
          target.path, target.host, target.port, body.size()) +
      body;
  if (::connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
    status = Status(StatusCode::kUnavailable, fmt::format("{}:{} does not answer", target.host, target.port));
  } else {
    for (size_t sent = 0; sent < request.size() && status.ok();) {
      const ssize_t count = ::send(fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) status = Status(StatusCode::kUnavailable, "the connection broke");
      sent += static_cast<size_t>(std::max<ssize_t>(count, 0));
    }
    char reply[16] = {};
    if (status.ok() && (::recv(fd, reply, sizeof reply - 1, MSG_WAITALL) < 12 || reply[9] != '2'))
      status = Status(StatusCode::kUnavailable, fmt::format("the collector said '{}'", reply));
  }
  ::close(fd);
  return status;
}

std::string Hex(size_t digits) {
  std::string text;
  while (text.size() < digits) text += RandomId("");
  return text.substr(0, digits);
}

std::string Nanoseconds(RequestTrace::Time time) {
  return fmt::format("{}",
                     std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

Json Text(std::string_view key, std::string_view value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}
Json Number(std::string_view key, int64_t value) {
  return {{"key", key}, {"value", {{"intValue", fmt::format("{}", value)}}}};
}

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Json Spans(const RequestTrace& trace) {
  // "00-" trace "-" span "-" flags.
  std::string trace_id;
  std::string parent;
  if (const std::string& given = trace.traceparent;
      given.size() >= 55 && given[2] == '-' && given[35] == '-') {
    trace_id = given.substr(3, 32);
    parent = given.substr(36, 16);
  }
  if (!IsHex(trace_id) || !IsHex(parent) || trace_id.empty()) {
    trace_id = Hex(32);
    parent.clear();
  }
  const std::string span_id = Hex(16);
  Json spans = Json::array();
  const auto add = [&](std::string_view name, RequestTrace::Time begin, RequestTrace::Time end) {
    if (begin == RequestTrace::Time()) return;
    spans.push_back({{"traceId", trace_id},
                     {"spanId", Hex(16)},
                     {"parentSpanId", span_id},
                     {"name", name},
                     {"kind", 1},
                     {"startTimeUnixNano", Nanoseconds(begin)},
                     {"endTimeUnixNano", Nanoseconds(end == RequestTrace::Time() ? trace.finish : end)}});
  };
  Json root = {
      {"traceId", trace_id},
      {"spanId", span_id},
      {"name", trace.route},
      {"kind", 2},
      {"startTimeUnixNano", Nanoseconds(trace.start)},
      {"endTimeUnixNano", Nanoseconds(trace.finish)},
      {"attributes", Json::array({Text("dsv4.request_id", trace.request_id), Text("dsv4.end", trace.end),
                                  Number("gen_ai.usage.input_tokens", trace.num_prompt_tokens),
                                  Number("dsv4.cached_tokens", trace.num_cached_tokens),
                                  Number("gen_ai.usage.output_tokens", trace.num_output_tokens)})},
      {"status", {{"code", trace.end == "error" ? 2 : 1}}}};
  if (!parent.empty()) root["parentSpanId"] = parent;
  spans.push_back(std::move(root));
  add("queue", trace.start, trace.admitted);
  add("prefill", trace.admitted, trace.first_token);
  add("decode", trace.first_token, trace.finish);
  return spans;
}

}  // namespace

std::string SpansOf(const RequestTrace& trace) { return JsonText(Spans(trace)); }

class TraceExporter::Impl {
 public:
  Impl(Target target, std::string version) : target_(std::move(target)), version_(std::move(version)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Export(RequestTrace trace) {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMostWaiting) {
      ++num_lost_;
      return;
    }
    waiting_.push_back(std::move(trace));
    if (waiting_.size() >= kMostInOne) changed_.notify_one();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait_for(lock, kInterval, [this] { return stopping_ || waiting_.size() >= kMostInOne; });
      const bool last = stopping_;
      if (!waiting_.empty()) {
        std::vector<RequestTrace> traces;
        while (!waiting_.empty() && traces.size() < kMostInOne) {
          traces.push_back(std::move(waiting_.front()));
          waiting_.pop_front();
        }
        lock.unlock();
        Send(traces);
        lock.lock();
      }
      if (last) return;
    }
  }

  void Send(const std::vector<RequestTrace>& traces) {
    Json spans = Json::array();
    for (const RequestTrace& trace : traces) {
      for (Json& span : Spans(trace)) spans.push_back(std::move(span));
    }
    const Json body = {
        {"resourceSpans",
         Json::array(
             {{{"resource", {{"attributes", Json::array({Text("service.name", "dsv4")})}}},
               {"scopeSpans", Json::array({{{"scope", {{"name", "dsv4.serve"}, {"version", version_}}},
                                            {"spans", std::move(spans)}}})}}})}};
    const Status status = Post(target_, JsonText(body));
    if (status.ok() != failing_) return;
    failing_ = !status.ok();
    if (failing_)
      LogWarning(fmt::format("traces: {} (said once until it works again)", status.message()));
    else
      LogWarning(fmt::format("traces: the collector takes them again; {} were lost", num_lost_.exchange(0)));
  }

  const Target target_;
  const std::string version_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RequestTrace> waiting_;
  std::atomic<int64_t> num_lost_ = 0;
  bool stopping_ = false;
  bool failing_ = false;
  std::thread thread_;
};

TraceExporter::TraceExporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceExporter::~TraceExporter() = default;
void TraceExporter::Export(RequestTrace trace) { impl_->Export(std::move(trace)); }

Result<std::unique_ptr<TraceExporter>> TraceExporter::Open(const std::string& endpoint,
                                                           const std::string& version) {
  DSV4_ASSIGN_OR_RETURN(Target target, ReadEndpoint(endpoint));
  return std::unique_ptr<TraceExporter>(
      new TraceExporter(std::make_unique<Impl>(std::move(target), version)));
}

}  // namespace dsv4::server
