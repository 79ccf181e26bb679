#include "backend/cuda/tiers/expert_tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/runtime/pinned_memory.h"

namespace dsv4::backend::cuda {
namespace {

bool IsResident(const ops::ExpertWeights& expert) { return expert.w1.data.device.type != DeviceType::kHost; }

}  // namespace

bool ExpertTiers::Entry::Fits(std::span<const ops::ExpertWeights> experts, uint64_t now) const {
  return num_experts == experts.size() && first == experts.front().w1.data.data &&
         last == experts.back().w2.data.data && generation == now;
}

bool ExpertTiers::Knows(std::span<const ops::ExpertWeights> experts) const {
  const auto found = entries_.find(experts.data());
  return found != entries_.end() && found->second.layer != nullptr &&
         found->second.Fits(experts, generation_);
}

Result<const TieredLayer*> ExpertTiers::Find(std::span<const ops::ExpertWeights> experts) {
  if (!has_host() && cache_.empty()) return nullptr;
  // As many as ExpertTables keeps.
  constexpr size_t kMaxEntries = 1024;
  if (entries_.size() >= kMaxEntries && !entries_.contains(experts.data())) {
    entries_.clear();
    cache_generation_ = 0;
  }
  Entry& entry = entries_[experts.data()];
  const void* const first = experts.front().w1.data.data;
  const void* const last = experts.back().w2.data.data;
  if (entry.Fits(experts, generation_)) return entry.layer.get();
  entry = {};
  if (!std::ranges::all_of(experts, IsResident)) {
    DSV4_ASSIGN_OR_RETURN(entry.layer, MakeLayer(experts));
  }
  entry.num_experts = experts.size();
  entry.first = first;
  entry.last = last;
  entry.generation = generation_;
  return entry.layer.get();
}

Status ExpertTiers::Start() {
  if (host_ != nullptr) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(state_, context_.memory().Allocate(sizeof(HostTermsState)));
  DSV4_ASSIGN_OR_RETURN_STATUS(
      host_, tiers::HostExperts::Create({.backend = options_.backend, .allocate = [this](size_t num_bytes) {
                                           return AllocatePinned(context_.queue(), num_bytes);
                                         }}));
  context_.queue().DescribeHostFaults([host = host_.get()] { return host->failure(); });
  return {};
}

Result<std::unique_ptr<TieredLayer>> ExpertTiers::MakeLayer(std::span<const ops::ExpertWeights> experts) {
  auto layer = std::make_unique<TieredLayer>();
  std::vector<ops::ExpertWeights> host;
  std::vector<int32_t> places;
  for (const ops::ExpertWeights& expert : experts) {
    const bool on_host = !IsResident(expert) && !cache_.Has(expert);
    std::vector<ops::ExpertWeights>& among = on_host ? host : layer->device;
    const auto place = static_cast<int32_t>(among.size());
    places.push_back(on_host ? ~place : place);
    among.push_back(expert);
  }
  if (!host.empty()) DSV4_TRY(Start());
  if (!cache_.empty()) {
    if (cache_generation_ != generation_) {
      DSV4_TRY(cache_.Restart());
      cache_generation_ = generation_;
    }
    DSV4_ASSIGN_OR_RETURN(layer->cached, cache_.AddLayer(layer->device));
  }
  if (host.empty()) {
    layer->device.clear();  // The op's own are as good.
    return layer;
  }
  const size_t num_bytes = places.size() * sizeof(int32_t);
  DSV4_ASSIGN_OR_RETURN(layer->places, context_.memory().Allocate(num_bytes));
  DSV4_TRY(context_.memory().CopyFromHost(layer->places.data(), places.data(), num_bytes, nullptr));
  layer->num_host = static_cast<int64_t>(host.size());
  layer->number = host_->AddLayer(std::move(host));
  return layer;
}

// The cache alone writes to tables, and only where they say of cached experts where these are.
void ExpertTiers::Bring(const TieredLayer& layer, const ExpertTable& table, int64_t num_places,
                        const TensorView& indices) {
  if (layer.cached.data() == nullptr) return;
  // Of so many choices at random few experts are left out.
  constexpr int64_t kManyChoicesOfExpert = 2;
  cache_.Bring({.indices = indices.as<const int32_t>(),
                .num_choices = indices.num_elements(),
                .experts = static_cast<const int32_t*>(layer.cached.data()),
                .num_places = static_cast<int>(num_places),
                .passing = indices.num_elements() >= kManyChoicesOfExpert * num_places,
                .table = const_cast<DeviceWeight*>(table.weights)});
}

Status ExpertTiers::RoutedExperts(const TieredLayer& layer, const ops::RoutedExpertsArgs& args) {
  const int64_t num_tokens = args.x.shape[0];
  const int64_t dim = args.x.shape[1];
  const int64_t top_k = args.indices.shape[1];
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  const Device device = args.x.device;
  DSV4_ASSIGN_OR_RETURN_STATUS(const tiers::Payload payload, host_->PayloadFor(args.x.dtype, dim, top_k));
  DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const places, context_.Scratch<int32_t>(num_tokens * top_k));
  DSV4_ASSIGN_OR_RETURN_STATUS(
      void* const memory,
      context_.Scratch(static_cast<size_t>(num_tokens * top_k * dim * ElementBytes(args.x.dtype))));
  const TensorView terms = TensorView::Contiguous(memory, args.x.dtype, {num_tokens, top_k, dim}, device);
  const TensorView device_indices =
      TensorView::Contiguous(static_cast<void*>(places), DType::kI32, {num_tokens, top_k}, device);
  const auto num_device = static_cast<int64_t>(layer.device.size());
  for (int64_t begin = 0; begin < num_tokens; begin += tiers::HostExperts::kMaxRows) {
    const int64_t end = std::min(num_tokens, begin + tiers::HostExperts::kMaxRows);
    const TensorView x = args.x.Rows(begin, end);
    const HostTermsWork work = {.x = x.data,
                                .indices = args.indices.Rows(begin, end).as<const int32_t>(),
                                .weights = args.weights.Rows(begin, end).as<const float>(),
                                .places = static_cast<const int32_t*>(layer.places.data()),
                                .device_indices = device_indices.Rows(begin, end).as<int32_t>(),
                                .terms = terms.Rows(begin, end).data,
                                .payload = payload,
                                .words = host_->words(),
                                .state = static_cast<HostTermsState*>(state_.data()),
                                .layer = layer.number,
                                .num_rows = static_cast<int>(end - begin),
                                .num_experts = static_cast<int>(num_experts),
                                .num_device = static_cast<int>(num_device),
                                .num_host = static_cast<int>(layer.num_host),
                                .limit = args.limit,
                                .deadline_ns = std::chrono::nanoseconds(options_.deadline).count()};
    LaunchAskHost(context_, work);
    // The device multiplies its own meanwhile.
    if (num_device > 0) {
      DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertTable* const table,
                                   context_.expert_tables().Find(layer.device, args.x.dtype));
      Bring(layer, *table, num_device, device_indices.Rows(begin, end));
      DSV4_RETURN_IF_ERROR(ExpertTerms(context_, {.x = x,
                                                  .indices = device_indices.Rows(begin, end),
                                                  .weights = args.weights.Rows(begin, end),
                                                  .experts = layer.device,
                                                  .first_expert = 0,
                                                  .num_experts = num_experts,
                                                  .limit = args.limit,
                                                  .terms = terms.Rows(begin, end)}));
    }
    LaunchTakeHostTerms(context_, work);
  }
  const int64_t begins[] = {0, num_experts};
  return SumTerms(context_, {.parts = terms.Reshaped({1, num_tokens, top_k, dim}),
                             .indices = args.indices,
                             .begins = begins,
                             .y = args.y});
}

}  // namespace dsv4::backend::cuda
