// routed_experts of layers with resident, cached and host experts: each tier's outputs, and their sum by
// expert.
#include "backend/cuda/tiers/expert_tiers.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/runtime/cuda_ops.h"
#include "backend/cuda/runtime/pinned_memory.h"
#include "backend/cuda/tiers/expert_terms.h"

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

void ExpertTiers::Forget() {
  WeightsChange();
  entries_.clear();
  cache_generation_ = 0;
  context_.queue().DescribeHostFaults({});
  host_.reset();
  state_ = {};  // Numbers of requests begin anew on both sides.
  cache_.Forget();
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
  if (layer.cached.numbers.empty()) return;
  // With so many choices at random few experts are left out.
  constexpr int64_t kPassingChoicesOfExpert = 2;
  cache_.Bring({.indices = indices.as<const int32_t>(),
                .num_choices = indices.num_elements(),
                .experts = static_cast<const int32_t*>(layer.cached.on_device.data()),
                .num_places = static_cast<int>(num_places),
                .passing = indices.num_elements() >= kPassingChoicesOfExpert * num_places,
                .table = const_cast<DeviceWeight*>(table.weights)});
}

bool ExpertTiers::Streams(const TieredLayer& layer, int64_t num_choices, int64_t num_experts) const {
  return !layer.cached.numbers.empty() && cache_.Streams(num_choices, num_experts);
}

Status ExpertTiers::StreamTerms(const TieredLayer& layer, const ExpertTable& table, const TermsWork& work,
                                const std::function<Status()>& before,
                                const std::function<Status()>& behind) {
  constexpr int kWeightsOfExpert = 3;
  return cache_.Stream(
      layer.cached, const_cast<DeviceWeight*>(table.weights), [&](int begin, int end) -> Status {
        DSV4_RETURN_IF_ERROR(before());
        ExpertTable of_part = table;
        of_part.weights += int64_t{begin} * kWeightsOfExpert;
        ops::ExpertTermsArgs args = work.args;
        args.experts = args.experts.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
        args.first_expert = begin;
        {
          const Arena::Scope scope = context_.ScratchScope();
          DSV4_RETURN_IF_ERROR(TermsOfTable(context_, of_part, {args, work.wrong_index}));
        }
        return behind();
      });
}

namespace {

// The rows of a layer whose experts are not all the device's, as many at a time as the host takes.
class HostRows {
 public:
  HostRows(CudaContext& context, const HostTermsWork& all, const ops::RoutedExpertsArgs& args,
           const TensorView& device_indices, const TensorView& terms)
      : context_(context), work_(all), args_(args), device_indices_(device_indices), terms_(terms) {}

  bool done() const { return begin_ == args_.x.shape[0]; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return std::min(args_.x.shape[0], begin_ + tiers::HostExperts::kMaxRows); }
  // Asks the host for its terms of the next rows; nothing where there are none.
  void Ask() {
    if (done()) return;
    work_.x = args_.x.Rows(begin_, end()).data;
    work_.indices = args_.indices.Rows(begin_, end()).as<const int32_t>();
    work_.weights = args_.weights.Rows(begin_, end()).as<const float>();
    work_.device_indices = device_indices_.Rows(begin_, end()).as<int32_t>();
    work_.terms = terms_.Rows(begin_, end()).data;
    work_.num_rows = static_cast<int>(end() - begin_);
    LaunchAskHost(context_, work_);
  }
  // Takes them.
  void Take() {
    if (done()) return;
    LaunchTakeHostTerms(context_, work_);
    begin_ = end();
  }

 private:
  CudaContext& context_;
  HostTermsWork work_;
  const ops::RoutedExpertsArgs& args_;
  const TensorView device_indices_;
  const TensorView terms_;
  int64_t begin_ = 0;
};

}  // namespace

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
      context_.ScratchBytes(static_cast<size_t>(num_tokens * top_k * dim * ElementBytes(args.x.dtype))));
  const TensorView terms = TensorView::Contiguous(memory, args.x.dtype, {num_tokens, top_k, dim}, device);
  const TensorView device_indices =
      TensorView::Contiguous(static_cast<void*>(places), DType::kI32, {num_tokens, top_k}, device);
  const auto num_device = static_cast<int64_t>(layer.device.size());
  const HostTermsWork all = {.x = nullptr,
                             .indices = args.indices.as<const int32_t>(),
                             .weights = nullptr,
                             .places = static_cast<const int32_t*>(layer.places.data()),
                             .device_indices = places,
                             .terms = nullptr,
                             .payload = payload,
                             .words = host_->words(),
                             .state = static_cast<HostTermsState*>(state_.data()),
                             .layer = layer.number,
                             .num_rows = static_cast<int>(num_tokens),
                             .num_experts = static_cast<int>(num_experts),
                             .num_device = static_cast<int>(num_device),
                             .num_host = static_cast<int>(layer.num_host),
                             .limit = args.limit,
                             .deadline_ns = std::chrono::nanoseconds(options_.deadline).count()};
  HostRows rows(context_, all, args, device_indices, terms);
  ops::ExpertTermsArgs of_device = {.x = args.x,
                                    .indices = device_indices,
                                    .weights = args.weights,
                                    .experts = layer.device,
                                    .first_expert = 0,
                                    .num_experts = num_experts,
                                    .limit = args.limit,
                                    .terms = terms};
  const ExpertTable* table = nullptr;
  if (num_device > 0) {
    DSV4_ASSIGN_OR_RETURN_STATUS(table, context_.expert_tables().Find(layer.device, args.x.dtype));
  }
  // The device multiplies its own while the host does: all rows at once, part by part, or as many as the host
  // takes.
  const bool streams = num_device > 0 && Streams(layer, args.indices.num_elements(), num_experts);
  if (streams) {
    LaunchPlaces(context_, all);
    const auto ask = [&] {
      rows.Ask();
      return Status();
    };
    const auto take = [&] {
      rows.Take();
      return Status();
    };
    DSV4_RETURN_IF_ERROR(StreamTerms(layer, *table, {of_device, FaultKind::kTermIndex}, ask, take));
  }
  while (!rows.done()) {
    rows.Ask();
    if (num_device > 0 && !streams) {
      const int64_t begin = rows.begin();
      const int64_t end = rows.end();
      of_device.x = args.x.Rows(begin, end);
      of_device.indices = device_indices.Rows(begin, end);
      of_device.weights = args.weights.Rows(begin, end);
      of_device.terms = terms.Rows(begin, end);
      Bring(layer, *table, num_device, of_device.indices);
      DSV4_RETURN_IF_ERROR(ExpertTerms(context_, of_device));
    }
    rows.Take();
  }
  const int64_t begins[] = {0, num_experts};
  return SumTerms(context_, {.parts = terms.Reshaped({1, num_tokens, top_k, dim}),
                             .indices = args.indices,
                             .begins = begins,
                             .y = args.y});
}

}  // namespace dsv4::backend::cuda
