// Several HTTP transfers at a time by libcurl's multi interface, with ranges, stalls and status codes.
#include "hub/transfer.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

#include "base/certificates.h"
#include "base/json.h"

namespace dsv4::hub {
namespace {

constexpr long kOk = 200;
constexpr long kPartial = 206;
constexpr long kSlowestBytes = 1024;  // A second.
constexpr size_t kMaxErrorText = 300;

struct FreeEasy {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};

std::optional<int64_t> ParseNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

struct Range {
  int64_t from;
  int64_t total;
};

// "bytes 100-199/500"; the total may be "*".
std::optional<Range> ParseContentRange(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const size_t dash = text.find('-');
  const size_t slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return std::nullopt;
  const auto from = ParseNumber(text.substr(0, dash));
  if (!from) return std::nullopt;
  if (text.substr(slash + 1) == "*") return Range{*from, -1};
  const auto total = ParseNumber(text.substr(slash + 1));
  if (!total) return std::nullopt;
  return Range{*from, *total};
}

// The words of an error's body: of JSON its message, of a page for browsers nothing.
std::string ForPeople(std::string text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || text[begin] == '<') return {};
  if (const Result<Json> json = ParseJson(text, "body"); json && json->is_object()) {
    for (const char* key : {"error", "message"}) {
      if (const auto found = json->find(key); found != json->end() && found->is_string()) {
        text = found->get<std::string>();
        break;
      }
    }
  }
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return text;
}

// One GET: the handle, and what its callbacks have seen.
class Transfer {
 public:
  Transfer(int id, const TransferRequest& request, BodySink& sink) : id_(id), sink_(sink) {
    handle_.reset(curl_easy_init());
    CURL* const handle = handle_.get();
    if (handle == nullptr) return;
    const auto set = [handle](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_USERAGENT, "dsv4");
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, 10L);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT, 30L);
    set(CURLOPT_LOW_SPEED_LIMIT, kSlowestBytes);
    set(CURLOPT_LOW_SPEED_TIME, std::max(1L, static_cast<long>(request.stall_seconds)));
    if (const char* file = CertificateFile()) set(CURLOPT_CAINFO, file);
    set(CURLOPT_BUFFERSIZE, 512L * 1024);
    if (!request.token.empty()) {
      set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
      set(CURLOPT_XOAUTH2_BEARER, request.token.c_str());
    }
    if (request.from > 0) set(CURLOPT_RANGE, fmt::format("{}-", request.from).c_str());
    set(CURLOPT_ERRORBUFFER, error_text_);
    set(CURLOPT_HEADERFUNCTION, &Transfer::OnHeader);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &Transfer::OnBody);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_PRIVATE, this);
  }

  int id() const { return id_; }
  CURL* handle() const { return handle_.get(); }

  TransferOutcome Outcome(CURLcode code) const {
    if (!refused_.ok()) return Failure(refused_);
    const long status = HttpStatus();
    // Behind a redirect the code says what became of it.
    if (status >= 400 || (status >= 300 && code == CURLE_OK)) return OfStatus(status);
    if (code == CURLE_OK) {
      if (status == kOk || status == kPartial) return {};
      return Failure(InvalidArgument(fmt::format("HTTP {}, wanted 200 or 206", status)));
    }
    const std::string cause = error_text_[0] != '\0' ? error_text_ : curl_easy_strerror(code);
    switch (code) {
      case CURLE_UNSUPPORTED_PROTOCOL:  // Also of an answer that is no HTTP, which another try may mend.
        return Failure(WasSent() ? Status(StatusCode::kUnavailable, cause) : FailedPrecondition(cause));
      case CURLE_URL_MALFORMAT:
      case CURLE_TOO_MANY_REDIRECTS:
      case CURLE_PEER_FAILED_VERIFICATION:
      case CURLE_SSL_CACERT_BADFILE:
        return Failure(FailedPrecondition(cause));
      case CURLE_OUT_OF_MEMORY:
        return Failure(ResourceExhausted(cause));
      case CURLE_COULDNT_RESOLVE_HOST:
      case CURLE_COULDNT_RESOLVE_PROXY: {
        TransferOutcome outcome = Failure(Status(StatusCode::kUnavailable, cause));
        outcome.unnamed = true;
        return outcome;
      }
      default:
        return Failure(Status(StatusCode::kUnavailable, cause));
    }
  }

 private:
  static TransferOutcome Failure(Status status) {
    const bool retry = status.code() == StatusCode::kUnavailable;
    return {.status = std::move(status), .retry = retry};
  }

  TransferOutcome OfStatus(long status) const {
    const std::string text = ForPeople(error_body_);
    const std::string what = fmt::format("HTTP {}{}{}", status, text.empty() ? "" : ": ", text);
    switch (status) {
      case 401:
      case 403:
        return Failure(FailedPrecondition(
            what + " (a private or gated repository wants a token that may read it: HF_TOKEN)"));
      case 404:
      case 410:
        return Failure(NotFound(what));
      case 408:
      case 416:
      case 425:
      case 429:
        break;
      default:
        if (status < 500) return Failure(InvalidArgument(what));
    }
    TransferOutcome outcome = Failure(Status(StatusCode::kUnavailable, what));
    curl_off_t seconds = 0;
    curl_easy_getinfo(handle(), CURLINFO_RETRY_AFTER, &seconds);
    outcome.retry_after = static_cast<double>(seconds);
    return outcome;
  }

  bool WasSent() const {
    long bytes = 0;
    curl_easy_getinfo(handle(), CURLINFO_REQUEST_SIZE, &bytes);
    return bytes > 0;
  }

  long HttpStatus() const {
    long status = 0;
    curl_easy_getinfo(handle(), CURLINFO_RESPONSE_CODE, &status);
    return status;
  }

  static size_t OnHeader(char* data, size_t size, size_t count, void* self) {
    const std::string_view line(data, size * count);
    auto& transfer = *static_cast<Transfer*>(self);
    constexpr std::string_view kName = "content-range:";
    if (line.starts_with("HTTP/")) {  // A redirect's answer begins so, too.
      transfer.content_range_.clear();
    } else if (line.size() > kName.size() &&
               std::ranges::equal(line.substr(0, kName.size()), kName, [](char a, char b) {
                 return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
               })) {
      std::string_view value = line.substr(kName.size());
      while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
      while (!value.empty() && (value.back() == '\r' || value.back() == '\n' || value.back() == ' '))
        value.remove_suffix(1);
      transfer.content_range_ = value;
    }
    return line.size();
  }

  Status Begin(long status) {
    if (status == kPartial) {
      const std::optional<Range> range = ParseContentRange(content_range_);
      if (!range)
        return {StatusCode::kUnavailable, fmt::format("HTTP 206 with Content-Range '{}'", content_range_)};
      return sink_.Begin(range->from, range->total);
    }
    curl_off_t length = -1;
    curl_easy_getinfo(handle(), CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    return sink_.Begin(0, length);
  }

  static size_t OnBody(char* data, size_t size, size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const std::string_view bytes(data, size * count);
    const long status = transfer.HttpStatus();
    if (status != kOk && status != kPartial) {  // The text of an error.
      const size_t room = kMaxErrorText - std::min(kMaxErrorText, transfer.error_body_.size());
      transfer.error_body_ += bytes.substr(0, room);
      return bytes.size();
    }
    if (!transfer.begun_) {
      transfer.begun_ = true;
      transfer.refused_ = transfer.Begin(status);
    }
    if (transfer.refused_.ok()) transfer.refused_ = transfer.sink_.Write(bytes);
    return transfer.refused_.ok() ? bytes.size() : CURL_WRITEFUNC_ERROR;
  }

  const int id_;
  BodySink& sink_;
  std::unique_ptr<CURL, FreeEasy> handle_;
  char error_text_[CURL_ERROR_SIZE] = {};
  std::string content_range_;
  std::string error_body_;
  bool begun_ = false;
  Status refused_;  // By the sink.
};

class CurlTransfers final : public Transfers {
 public:
  explicit CurlTransfers(CURLM* multi) : multi_(multi) {}
  ~CurlTransfers() override {
    for (const auto& transfer : transfers_) {
      if (transfer->handle() != nullptr) curl_multi_remove_handle(multi_, transfer->handle());
    }
    transfers_.clear();
    curl_multi_cleanup(multi_);
  }

  void Start(int id, const TransferRequest& request, BodySink& sink) override {
    transfers_.push_back(std::make_unique<Transfer>(id, request, sink));
    CURL* const handle = transfers_.back()->handle();
    if (handle != nullptr && curl_multi_add_handle(multi_, handle) == CURLM_OK) return;
    finished_.push_back({id, {.status = ResourceExhausted("libcurl cannot begin a transfer")}});
    transfers_.pop_back();
  }

  std::vector<Finished> Run(double seconds) override {
    int running = 0;
    curl_multi_perform(multi_, &running);
    Collect();
    if (finished_.empty() && seconds > 0) {
      curl_multi_poll(multi_, nullptr, 0, static_cast<int>(seconds * 1000), nullptr);
      curl_multi_perform(multi_, &running);
      Collect();
    }
    return std::exchange(finished_, {});
  }

 private:
  void Collect() {
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* const handle = message->easy_handle;
      const CURLcode code = message->data.result;  // The message is gone with the handle.
      const auto found = std::ranges::find_if(
          transfers_, [&](const auto& transfer) { return transfer->handle() == handle; });
      if (found == transfers_.end()) continue;
      finished_.push_back({(*found)->id(), (*found)->Outcome(code)});
      curl_multi_remove_handle(multi_, handle);
      transfers_.erase(found);
    }
  }

  CURLM* multi_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<Finished> finished_;
};

}  // namespace

Result<std::unique_ptr<Transfers>> Transfers::Make() {
  static std::once_flag once;
  static CURLcode initialised = CURLE_FAILED_INIT;
  std::call_once(once, [] { initialised = curl_global_init(CURL_GLOBAL_DEFAULT); });
  CURLM* const multi = initialised == CURLE_OK ? curl_multi_init() : nullptr;
  if (multi == nullptr) return Error(Internal("libcurl cannot be initialised"));
  return std::make_unique<CurlTransfers>(multi);
}

}  // namespace dsv4::hub
