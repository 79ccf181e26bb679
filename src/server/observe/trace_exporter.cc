// TraceExporter: a queue, a thread, and POSTs by libcurl.
#include "server/observe/trace_exporter.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/certificates.h"
#include "base/log.h"

namespace dsv4::server {
namespace {

constexpr size_t kMostWaiting = 4096;
constexpr size_t kMostInOne = 256;
constexpr std::chrono::seconds kInterval(1);
constexpr long kLastTryMs = 2'000;  // As the server ends.

size_t Ignore(char*, size_t size, size_t count, void*) { return size * count; }

struct FreeEasy {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// One after the other, over one connection while it stays.
class Collector {
 public:
  explicit Collector(const TraceOptions& options) : options_(options), handle_(curl_easy_init()) {
    std::vector<std::string> lines = {"Content-Type: application/x-protobuf", "Expect:"};
    for (const auto& [name, value] : options.headers) lines.push_back(fmt::format("{}: {}", name, value));
    for (const std::string& line : lines) {
      curl_slist* const longer = curl_slist_append(headers_.get(), line.c_str());
      if (longer == nullptr) continue;
      (void)headers_.release();
      headers_.reset(longer);
    }
  }

  Status Post(const std::string& body, long timeout_ms) {
    CURL* const handle = handle_.get();
    if (handle == nullptr) return {StatusCode::kUnavailable, "no memory for libcurl"};
    const auto set = [handle](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
    set(CURLOPT_URL, options_.url.c_str());
    set(CURLOPT_USERAGENT, "dsv4");
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_TIMEOUT_MS, timeout_ms);
    set(CURLOPT_HTTPHEADER, headers_.get());
    set(CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
    set(CURLOPT_POSTFIELDS, body.c_str());
    set(CURLOPT_WRITEFUNCTION, &Ignore);
    const char* const certificates =
        options_.certificate.empty() ? CertificateFile() : options_.certificate.c_str();
    if (certificates != nullptr) set(CURLOPT_CAINFO, certificates);
    const CURLcode code = curl_easy_perform(handle);
    if (code != CURLE_OK) {
      return {StatusCode::kUnavailable, fmt::format("{}: {}", options_.url, curl_easy_strerror(code))};
    }
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    if (status / 100 == 2) return {};
    return {StatusCode::kUnavailable,
            fmt::format("{}: got HTTP {} from the collector, wanted 200", options_.url, status)};
  }

 private:
  const TraceOptions& options_;
  std::unique_ptr<CURL, FreeEasy> handle_;
  std::unique_ptr<curl_slist, FreeList> headers_;
};

}  // namespace

class TraceExporter::Impl {
 public:
  Impl(TraceOptions options, std::string model, std::string version)
      : options_(std::move(options)),
        model_(std::move(model)),
        version_(std::move(version)),
        collector_(options_) {
    sending_.reserve(kMostInOne);  // So that none is lost on its way for want of memory.
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
    if (!IsSampled(trace, options_)) return;
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
        while (!waiting_.empty() && sending_.size() < kMostInOne) {
          sending_.push_back(std::move(waiting_.front()));
          waiting_.pop_front();
        }
        lock.unlock();
        Send(last ? std::min<long>(kLastTryMs, options_.timeout_ms) : options_.timeout_ms);
        lock.lock();
      }
      if (last) return;
    }
  }

  void Send(long timeout_ms) {
    bool taken = false;
    try {
      const Status status = collector_.Post(EncodeTraces(sending_, options_, model_, version_), timeout_ms);
      taken = status.ok();
      Tell(status);
    } catch (const std::bad_alloc&) {
    }
    if (!taken) num_lost_ += static_cast<int64_t>(sending_.size());
    sending_.clear();
  }

  void Tell(const Status& status) {
    if (status.ok() != failing_) return;
    failing_ = !status.ok();
    if (failing_)
      LogWarning(fmt::format("traces: {} (said once until it works again)", status.message()));
    else
      LogWarning(fmt::format("traces: the collector takes them again; {} were lost", num_lost_.exchange(0)));
  }

  const TraceOptions options_;
  const std::string model_;
  const std::string version_;
  Collector collector_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RequestTrace> waiting_;
  std::vector<RequestTrace> sending_;  // The thread's.
  std::atomic<int64_t> num_lost_ = 0;
  bool stopping_ = false;
  bool failing_ = false;
  std::thread thread_;
};

TraceExporter::TraceExporter(TraceOptions options, std::string model, std::string version)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(model), std::move(version))) {}
TraceExporter::~TraceExporter() = default;
void TraceExporter::Export(RequestTrace trace) { impl_->Export(std::move(trace)); }

}  // namespace dsv4::server
