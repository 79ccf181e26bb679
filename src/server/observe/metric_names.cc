// The table of metrics that vLLM has too, and their copies under its names.
#include "server/observe/metric_names.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace dsv4::server {
namespace {

struct OtherName {
  std::string_view ours;
  std::string_view theirs;
  // Names the series that count there; empty: all do, with their labels.
  std::string_view reason = {};
};

// Some have had two names there, and readers ask for either.
constexpr OtherName kOtherNames[] = {
    {"dsv4_requests_running", "vllm:num_requests_running"},
    {"dsv4_requests_waiting", "vllm:num_requests_waiting"},
    {"dsv4_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"},
    {"dsv4_kv_cache_usage_ratio", "vllm:gpu_cache_usage_perc"},
    {"dsv4_cache_info", "vllm:cache_config_info"},
    {"dsv4_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"dsv4_prompt_tokens_total", "vllm:prefix_cache_queries_total"},
    {"dsv4_prompt_tokens_total", "vllm:gpu_prefix_cache_queries_total"},
    {"dsv4_cached_tokens_total", "vllm:prefix_cache_hits_total"},
    {"dsv4_cached_tokens_total", "vllm:gpu_prefix_cache_hits_total"},
    {"dsv4_output_tokens_total", "vllm:generation_tokens_total"},
    {"dsv4_preemptions_total", "vllm:num_preemptions_total"},
    {"dsv4_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"dsv4_inter_token_seconds", "vllm:inter_token_latency_seconds"},
    {"dsv4_inter_token_seconds", "vllm:time_per_output_token_seconds"},
    {"dsv4_request_seconds", "vllm:e2e_request_latency_seconds"},
    {"dsv4_requests_total", "vllm:request_success_total", "done"},
};

prometheus::MetricFamily Copy(prometheus::MetricFamily family, const OtherName& name,
                              const std::string& model_id) {
  family.name = name.theirs;
  if (!name.reason.empty()) {
    const auto counts = [&](const prometheus::ClientMetric& metric) {
      return std::ranges::any_of(metric.label, [&](const auto& label) { return label.value == name.reason; });
    };
    std::erase_if(family.metric, [&](const auto& metric) { return !counts(metric); });
    for (prometheus::ClientMetric& metric : family.metric) metric.label.clear();
  }
  for (prometheus::ClientMetric& metric : family.metric) {
    const std::vector<prometheus::ClientMetric::Label> added = {{"model_name", model_id}, {"engine", "0"}};
    metric.label.insert(metric.label.begin(), added.begin(), added.end());
  }
  return family;
}

}  // namespace

std::optional<MetricNames> ParseMetricNames(std::string_view text) {
  if (text == "dsv4") return MetricNames::kDsv4;
  if (text == "vllm") return MetricNames::kVllm;
  if (text == "both") return MetricNames::kBoth;
  return std::nullopt;
}

std::vector<prometheus::MetricFamily> Named(std::vector<prometheus::MetricFamily> families, MetricNames names,
                                            const std::string& model_id) {
  if (names == MetricNames::kDsv4) return families;
  std::vector<prometheus::MetricFamily> named;
  for (prometheus::MetricFamily& family : families) {
    bool has_other = false;
    for (const OtherName& name : kOtherNames) {
      if (name.ours != family.name) continue;
      has_other = true;
      named.push_back(Copy(family, name, model_id));
    }
    if (!has_other || names == MetricNames::kBoth) named.push_back(std::move(family));
  }
  return named;
}

}  // namespace dsv4::server
