// Spans as OTLP has them, and what the standard's variables say of where they go.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/text.h"
#include "server/observe/protobuf.h"
#include "server/observe/random_id.h"
#include "server/observe/trace_exporter.h"

namespace dsv4::server {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// The bytes that lower-case hex digits spell; empty where they are none, or all zero, which stands for no id.
std::string BytesOf(std::string_view hex) {
  std::string bytes;
  bool any = false;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const int high = HexDigit(hex[i]);
    const int low = HexDigit(hex[i + 1]);
    if (high < 0 || low < 0) return {};
    any = any || high + low > 0;
    bytes += static_cast<char>(high * 16 + low);
  }
  return any ? bytes : std::string();
}

std::string NewId(size_t num_bytes) {
  std::string hex;
  while (hex.size() < 2 * num_bytes) hex += RandomId("");
  return BytesOf(std::string_view(hex).substr(0, 2 * num_bytes));
}

// "00-" trace "-" span "-" flags; without a trace the request begins one.
struct Parent {
  std::string trace;
  std::string span;
  bool sampled = true;
};
Parent ParentOf(const std::string& given) {
  constexpr size_t kLength = 55;
  const bool fits = given.size() >= kLength && given[2] == '-' && given[35] == '-' && given[52] == '-' &&
                    !given.starts_with("ff");
  Parent parent;
  if (!fits) return parent;
  parent.trace = BytesOf(std::string_view(given).substr(3, 32));
  parent.span = BytesOf(std::string_view(given).substr(36, 16));
  if (parent.trace.empty() || parent.span.empty()) return {};
  parent.sampled = HexDigit(given[54]) >= 0 && (HexDigit(given[54]) & 1) != 0;
  return parent;
}

ProtobufWriter Attribute(std::string_view key, const ProtobufWriter& value) {
  ProtobufWriter attribute;
  attribute.Bytes(1, key);
  attribute.Message(2, value);
  return attribute;
}
ProtobufWriter Text(std::string_view key, std::string_view text) {
  ProtobufWriter value;
  value.Bytes(1, text);
  return Attribute(key, value);
}
ProtobufWriter Number(std::string_view key, int64_t number) {
  ProtobufWriter value;
  value.Int(3, number);
  return Attribute(key, value);
}
ProtobufWriter Seconds(std::string_view key, double seconds) {
  ProtobufWriter value;
  value.Fixed64(4, __builtin_bit_cast(uint64_t, seconds));
  return Attribute(key, value);
}

uint64_t Nanoseconds(RequestTrace::Time time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

// Fields of Span, KeyValue and others by their numbers in opentelemetry/proto/trace/v1/trace.proto.
void AddSpans(const RequestTrace& trace, const std::string& model, ProtobufWriter& scope) {
  constexpr int kInternal = 1;
  constexpr int kServer = 2;
  constexpr int kError = 2;
  Parent parent = ParentOf(trace.traceparent);
  const bool begins = parent.trace.empty();
  if (begins) parent.trace = NewId(16);
  const std::string id = NewId(8);
  const auto span = [&](std::string_view own, const std::string& above, std::string_view name, int kind,
                        RequestTrace::Time begin, RequestTrace::Time end) {
    ProtobufWriter out;
    out.Bytes(1, parent.trace);
    out.Bytes(2, own);
    if (!begins && !trace.tracestate.empty()) out.Bytes(3, trace.tracestate);
    if (!above.empty()) out.Bytes(4, above);
    out.Bytes(5, name);
    out.Int(6, kind);
    out.Fixed64(7, Nanoseconds(begin));
    out.Fixed64(8, Nanoseconds(end));
    return out;
  };
  ProtobufWriter root = span(id, parent.span, fmt::format("{} {}", trace.method, trace.route), kServer,
                             trace.start, trace.finish);
  const auto add = [&](const ProtobufWriter& attribute) { root.Message(9, attribute); };
  add(Text("http.request.method", trace.method));
  add(Text("http.route", trace.route));
  if (trace.http_status > 0) add(Number("http.response.status_code", trace.http_status));
  add(Text("dsv4.request_id", trace.request_id));
  add(Text("dsv4.end", trace.end));
  if (!trace.operation.empty()) {
    add(Text("gen_ai.operation.name", trace.operation));
    add(Text("gen_ai.provider.name", "dsv4"));
    add(Text("gen_ai.request.model", model));
    add(Text("gen_ai.response.model", model));
    add(Number("gen_ai.usage.input_tokens", trace.num_prompt_tokens));
    add(Number("gen_ai.usage.cache_read.input_tokens", trace.num_cached_tokens));
    add(Number("gen_ai.usage.output_tokens", trace.num_output_tokens));
    add(Number("gen_ai.usage.reasoning.output_tokens", trace.num_reasoning_tokens));
  }
  if (trace.first_token != RequestTrace::Time()) {
    add(Seconds("gen_ai.latency.time_to_first_token",
                std::chrono::duration<double>(trace.first_token - trace.start).count()));
  }
  const bool failed = trace.end == "error" || trace.http_status >= 500;
  if (failed || trace.end == "refused")
    add(Text("error.type",
             trace.http_status > 0 ? fmt::format("{}", trace.http_status) : std::string(trace.end)));
  // Only its own fault is an error of a server's span.
  if (failed) {
    ProtobufWriter status;
    if (!trace.error.empty()) status.Bytes(2, trace.error);
    status.Int(3, kError);
    root.Message(15, status);
  }
  scope.Message(2, root);
  const auto part = [&](std::string_view name, RequestTrace::Time begin, RequestTrace::Time end) {
    if (begin == RequestTrace::Time() || trace.operation.empty()) return;
    scope.Message(
        2, span(NewId(8), id, name, kInternal, begin, end == RequestTrace::Time() ? trace.finish : end));
  };
  part("queue", trace.start, trace.admitted);
  part("prefill", trace.admitted, trace.first_token);
  part("decode", trace.first_token, trace.finish);
}

// "key=value,key=value", values percent-encoded: the form of the baggage header.
Result<Pairs> ReadPairs(std::string_view text, std::string_view variable) {
  Pairs pairs;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const auto trimmed = [](std::string_view part) { return Trim(part, " \t"); };
    if (trimmed(one).empty()) continue;
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos)
      return Error(InvalidArgument(fmt::format("{}: got '{}', wanted KEY=VALUE", variable, one)));
    pairs.emplace_back(PercentDecoded(trimmed(one.substr(0, equals))),
                       PercentDecoded(trimmed(one.substr(equals + 1))));
    const auto breaks = [](const std::string& part) {
      return part.find_first_of("\r\n") != std::string::npos;
    };
    if (pairs.back().first.empty() || breaks(pairs.back().first) || breaks(pairs.back().second))
      return Error(InvalidArgument(fmt::format("{}: got '{}', wanted KEY=VALUE in one line", variable, one)));
  }
  return pairs;
}

// `completes`: the path of traces is added to one that has none of its own (of the general variable: to any).
Result<std::string> ReadUrl(std::string url, std::string_view variable, bool completes, bool to_any) {
  const size_t scheme = url.starts_with("http://") ? 7 : url.starts_with("https://") ? 8 : 0;
  const size_t slash = url.find('/', scheme);
  if (scheme == 0 || url.size() == scheme || slash == scheme)
    return Error(InvalidArgument(
        fmt::format("{}: got '{}', wanted http://HOST:PORT or https://HOST:PORT", variable, url)));
  while (completes && url.size() > scheme && url.ends_with('/')) url.pop_back();
  const bool has_path = url.find('/', scheme) != std::string::npos;
  if (completes && (to_any || !has_path)) url += "/v1/traces";
  return url;
}

Status ReadSampler(const std::string& name, const char* argument, TraceOptions& options) {
  options.follows_parent = name.starts_with("parentbased_");
  const std::string base = options.follows_parent ? name.substr(name.find('_') + 1) : name;
  if (base == "always_on") return {};
  if (base == "always_off") {
    options.ratio = 0.0;
    return {};
  }
  if (base != "traceidratio") {
    return InvalidArgument(
        fmt::format("OTEL_TRACES_SAMPLER: got '{}', wanted always_on, always_off, traceidratio, or "
                    "one of these behind parentbased_",
                    name));
  }
  if (argument == nullptr) return {};
  const std::string_view text = argument;
  double ratio = -1.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  if (error != std::errc() || end != text.data() + text.size() || ratio < 0.0 || ratio > 1.0)
    return InvalidArgument(
        fmt::format("OTEL_TRACES_SAMPLER_ARG: got '{}', wanted a number from 0 to 1", text));
  options.ratio = ratio;
  return {};
}

}  // namespace

Result<TraceOptions> TraceOptions::Read(const std::string& endpoint,
                                        const std::function<const char*(const char*)>& variable) {
  // An empty one is unset. Of two names the first that is set counts: what is said of traces, then what is
  // said of all signals.
  const auto get = [&](const char* name) -> const char* {
    const char* const value = variable(name);
    return value == nullptr || *value == '\0' ? nullptr : value;
  };
  const auto either = [&](const char* part) -> std::optional<std::pair<std::string, std::string>> {
    for (const char* signal : {"TRACES_", ""}) {
      const std::string name = fmt::format("OTEL_EXPORTER_OTLP_{}{}", signal, part);
      if (const char* const value = get(name.c_str())) return std::pair(name, std::string(value));
    }
    return std::nullopt;
  };
  TraceOptions options;
  const auto is = [&](const char* name, std::string_view value) {
    const char* const got = get(name);
    return got != nullptr && got == value;
  };
  options.is_off = is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none");
  if (options.is_off) return options;
  if (!endpoint.empty()) {
    DSV4_ASSIGN_OR_RETURN(options.url, ReadUrl(endpoint, "--otlp-endpoint", true, false));
  } else if (const auto given = either("ENDPOINT")) {
    const bool of_traces = given->first == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    DSV4_ASSIGN_OR_RETURN(options.url, ReadUrl(given->second, given->first, !of_traces, true));
  }
  if (options.url.empty()) return options;
  if (const auto protocol = either("PROTOCOL"); protocol && protocol->second != "http/protobuf") {
    return Error(
        InvalidArgument(fmt::format("{}: got '{}', wanted http/protobuf (port 4318 of most collectors)",
                                    protocol->first, protocol->second)));
  }
  if (const auto headers = either("HEADERS")) {
    DSV4_ASSIGN_OR_RETURN(options.headers, ReadPairs(headers->second, headers->first));
  }
  if (const auto certificate = either("CERTIFICATE")) options.certificate = certificate->second;
  if (const auto compression = either("COMPRESSION"); compression && compression->second != "none")
    return Error(
        InvalidArgument(fmt::format("{}: got '{}', wanted none", compression->first, compression->second)));
  if (const auto timeout = either("TIMEOUT")) {
    const std::string& text = timeout->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.timeout_ms);
    if (error != std::errc() || end != text.data() + text.size() || options.timeout_ms <= 0)
      return Error(InvalidArgument(fmt::format("{}: got '{}', wanted milliseconds", timeout->first, text)));
  }
  if (const char* const sampler = get("OTEL_TRACES_SAMPLER"))
    DSV4_TRY(ReadSampler(sampler, get("OTEL_TRACES_SAMPLER_ARG"), options));
  if (const char* const resource = get("OTEL_RESOURCE_ATTRIBUTES")) {
    DSV4_ASSIGN_OR_RETURN(options.resource, ReadPairs(resource, "OTEL_RESOURCE_ATTRIBUTES"));
  }
  const char* const service = get("OTEL_SERVICE_NAME");
  const auto is_name = [](const auto& pair) { return pair.first == "service.name"; };
  if (service != nullptr) std::erase_if(options.resource, is_name);
  if (std::ranges::none_of(options.resource, is_name))
    options.resource.emplace_back("service.name", service != nullptr ? service : "dsv4");
  return options;
}

bool IsSampled(const RequestTrace& trace, const TraceOptions& options) {
  const Parent parent = ParentOf(trace.traceparent);
  if (options.follows_parent && !parent.trace.empty()) return parent.sampled;
  if (options.ratio >= 1.0) return true;
  // By the trace's last bytes, as other services decide for the same trace.
  const std::string id = parent.trace.empty() ? NewId(16) : parent.trace;
  uint64_t low = 0;
  for (size_t i = 8; i < 16; ++i) low = low << 8 | static_cast<uint8_t>(id[i]);
  constexpr double kHalf = 0x1.0p63;
  return static_cast<double>(low >> 1) < options.ratio * kHalf;
}

std::string EncodeTraces(const std::vector<RequestTrace>& traces, const TraceOptions& options,
                         const std::string& model, const std::string& version) {
  ProtobufWriter resource;
  for (const auto& [key, value] : options.resource) resource.Message(1, Text(key, value));
  ProtobufWriter scope;
  scope.Bytes(1, "dsv4.serve");
  scope.Bytes(2, version);
  ProtobufWriter scope_spans;
  scope_spans.Message(1, scope);
  for (const RequestTrace& trace : traces) AddSpans(trace, model, scope_spans);
  ProtobufWriter resource_spans;
  resource_spans.Message(1, resource);
  resource_spans.Message(2, scope_spans);
  ProtobufWriter request;
  request.Message(1, resource_spans);
  return request.text();
}

}  // namespace dsv4::server
