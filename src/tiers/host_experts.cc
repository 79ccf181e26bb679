// Thread that watches a device's requests and multiplies experts on the host.
#include "tiers/host_experts.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <span>
#include <utility>
#include <vector>

namespace dsv4::tiers {
namespace {

using Clock = std::chrono::steady_clock;

uint32_t Load(uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }
void Store(uint32_t& word, uint32_t value) { std::atomic_ref(word).store(value, std::memory_order_release); }

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Result<std::unique_ptr<HostExperts>> HostExperts::Create(HostExpertsOptions options) {
  if (options.backend.table.expert_terms == nullptr) {
    return Error(Unimplemented(
        fmt::format("experts on the host: backend {} has no op expert_terms", options.backend.name)));
  }
  std::unique_ptr<HostExperts> experts(new HostExperts(std::move(options)));
  DSV4_ASSIGN_OR_RETURN(experts->words_memory_, experts->options_.allocate(sizeof(ExchangeWords)));
  experts->words_ = new (experts->words_memory_.data()) ExchangeWords();
  experts->worker_ = std::jthread([self = experts.get()](const std::stop_token& stop) { self->Work(stop); });
  return experts;
}

HostExperts::~HostExperts() = default;

int32_t HostExperts::AddLayer(std::vector<ops::ExpertWeights> experts) {
  const std::lock_guard lock(mutex_);
  layers_.push_back(std::move(experts));
  return static_cast<int32_t>(layers_.size()) - 1;
}

Result<Payload> HostExperts::PayloadFor(DType dtype, int64_t dim, int64_t top_k) {
  const std::lock_guard lock(mutex_);
  for (const Payload& payload : payloads_) {
    if (payload.dtype == dtype && payload.dim == dim && payload.top_k == top_k) return payload;
  }
  Payload payload{
      .index = static_cast<int32_t>(payloads_.size()), .dtype = dtype, .dim = dim, .top_k = top_k};
  const auto allocate = [&](int64_t num_bytes) -> Result<void*> {
    DSV4_ASSIGN_OR_RETURN(Buffer buffer, options_.allocate(static_cast<size_t>(num_bytes)));
    memory_.push_back(std::move(buffer));
    return memory_.back().data();
  };
  const int64_t num_choices = kMaxRows * top_k;
  DSV4_ASSIGN_OR_RETURN(payload.x, allocate(kMaxRows * dim * ElementBytes(dtype)));
  DSV4_ASSIGN_OR_RETURN(void* const indices, allocate(num_choices * static_cast<int64_t>(sizeof(int32_t))));
  DSV4_ASSIGN_OR_RETURN(void* const weights, allocate(num_choices * static_cast<int64_t>(sizeof(float))));
  DSV4_ASSIGN_OR_RETURN(payload.terms, allocate(num_choices * dim * ElementBytes(dtype)));
  payload.indices = static_cast<int32_t*>(indices);
  payload.weights = static_cast<float*>(weights);
  payloads_.push_back(payload);
  return payload;
}

std::string HostExperts::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

HostExpertsCounters HostExperts::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

// Requests of a step follow each other within a millisecond. What comes after a pause waits for the end of a
// short sleep, since a device cannot wake a thread.
bool HostExperts::AwaitRequest(const std::stop_token& stop, uint32_t seen) const {
  constexpr std::chrono::milliseconds kSpin(3);
  constexpr std::chrono::seconds kBusy(1);
  constexpr std::chrono::microseconds kShortSleep(50);
  constexpr std::chrono::microseconds kLongSleep(500);
  constexpr int kPausesPerLook = 64;
  const Clock::time_point begin = Clock::now();
  while (!stop.stop_requested()) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (Load(words_->asked) != seen) return true;
      Pause();
    }
    const auto idle = Clock::now() - begin;
    if (idle > kSpin) std::this_thread::sleep_for(idle > kBusy ? kLongSleep : kShortSleep);
  }
  return false;
}

void HostExperts::Work(const std::stop_token& stop) {
  uint32_t seen = 0;
  while (AwaitRequest(stop, seen)) {
    const Clock::time_point begin = Clock::now();
    seen = Load(words_->asked);
    Status status;
    int64_t num_chosen = 0;
    try {
      status = Answer(num_chosen);
    } catch (const std::exception& error) {  // Memory ran out, or a thread of the pool failed.
      status = Internal(error.what());
    }
    {
      const std::lock_guard lock(mutex_);
      if (!status.ok()) failure_ = status.message();
      ++counters_.requests;
      counters_.rows += words_->num_rows;
      counters_.experts += num_chosen;
      counters_.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (!status.ok()) Store(words_->failed, seen);
    Store(words_->answered, seen);
  }
}

Status HostExperts::Answer(int64_t& num_chosen) {
  Payload payload;
  std::span<const ops::ExpertWeights> experts;
  {
    const std::lock_guard lock(mutex_);
    const int32_t layer = words_->layer;
    const int32_t index = words_->payload;
    if (layer < 0 || static_cast<size_t>(layer) >= layers_.size() || index < 0 ||
        static_cast<size_t>(index) >= payloads_.size() || words_->num_rows < 0 ||
        words_->num_rows > kMaxRows) {
      return Internal(fmt::format("request {}: layer {} of {}, payload {} of {}, rows {} of at most {}",
                                  words_->asked, layer, layers_.size(), index, payloads_.size(),
                                  words_->num_rows, kMaxRows));
    }
    payload = payloads_[static_cast<size_t>(index)];
    experts = layers_[static_cast<size_t>(layer)];
  }
  const int64_t rows = words_->num_rows;
  // The op is handed the chosen experts alone, in their order. A layer has hundreds, and going through all
  // would take as long as a few experts.
  const auto num_host = static_cast<int32_t>(experts.size());
  std::vector<int32_t> indices(payload.indices, payload.indices + rows * payload.top_k);
  std::vector<int32_t> place_of(experts.size(), -1);
  for (const int32_t place : indices) {
    if (place >= 0 && place < num_host) place_of[static_cast<size_t>(place)] = 0;
  }
  std::vector<ops::ExpertWeights> chosen;
  for (size_t i = 0; i < place_of.size(); ++i) {
    if (place_of[i] < 0) continue;
    place_of[i] = static_cast<int32_t>(chosen.size());
    chosen.push_back(experts[i]);
  }
  num_chosen = static_cast<int64_t>(chosen.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    int32_t& place = indices[i];
    if (place < 0 || place > num_host) {
      const auto top_k = static_cast<size_t>(payload.top_k);
      return OutOfRange(
          fmt::format("indices[{}, {}]: {}, want 0 to {}", i / top_k, i % top_k, place, num_host));
    }
    place = place == num_host ? static_cast<int32_t>(num_chosen) : place_of[static_cast<size_t>(place)];
  }
  const auto view = [&](void* data, DType dtype, const Shape& shape) {
    return TensorView::Contiguous(data, dtype, shape);
  };
  return options_.backend.table.expert_terms(
      *options_.backend.context,
      {.x = view(payload.x, payload.dtype, {rows, payload.dim}),
       .indices = view(indices.data(), DType::kI32, {rows, payload.top_k}),
       .weights = view(payload.weights, DType::kF32, {rows, payload.top_k}),
       .experts = chosen,
       .first_expert = 0,
       .num_experts = num_chosen + 1,  // The last stands for all that are elsewhere.
       .limit = words_->limit,
       .terms = view(payload.terms, payload.dtype, {rows, payload.top_k, payload.dim})});
}

}  // namespace dsv4::tiers
