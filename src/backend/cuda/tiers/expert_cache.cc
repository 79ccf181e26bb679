// Owner of cached experts: pinned copies, slots on the device, and what layers share of them.
#include "backend/cuda/tiers/expert_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/runtime/pinned_memory.h"
#include "base/text.h"

namespace dsv4::backend::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kWord = 16;  // Copies are of so many bytes at least.
constexpr int64_t kWeightsOfExpert = 3;

size_t RoundedUp(size_t value, size_t to) { return (value + to - 1) / to * to; }

struct Sizes {
  size_t data = 0;
  size_t scale_begin = 0;  // 0: none.
  size_t all = 0;
};

Sizes SizesOf(const Weight& weight) {
  Sizes sizes{.data = static_cast<size_t>(weight.data.num_bytes())};
  if (weight.scale.is_null()) return {.data = sizes.data, .all = RoundedUp(sizes.data, kWord)};
  sizes.scale_begin = RoundedUp(sizes.data, kAlignment);
  // Kernels read scales by the aligned word.
  sizes.all = RoundedUp(sizes.scale_begin + static_cast<size_t>(weight.scale.num_bytes()) + 4, kWord);
  return sizes;
}

}  // namespace

Result<Weight> ExpertCache::Keep(const Weight& source, int64_t slots, bool reorder) {
  const Sizes sizes = SizesOf(source);
  if (sizes.all > UINT32_MAX) {
    return Error(
        Unimplemented(fmt::format("op prepare_weight: a cached expert's weight of {}, want less than 4 GB",
                                  Counted(sizes.all, "byte"))));
  }
  DSV4_ASSIGN_OR_RETURN(Buffer owner, store_.Place(sizes.all));
  auto* const base = static_cast<std::byte*>(owner.data());
  store_.Copy(base, source.data.as<const std::byte>(), sizes.data, reorder);
  Weight kept = source;
  kept.repacked = reorder;
  kept.data = TensorView::Contiguous(static_cast<void*>(base), source.data.dtype, source.data.shape);
  if (sizes.scale_begin > 0) {
    std::byte* const scale = base + sizes.scale_begin;
    store_.Copy(scale, source.scale.as<const std::byte>(), static_cast<size_t>(source.scale.num_bytes()),
                false);
    kept.scale = TensorView::Contiguous(static_cast<void*>(scale), source.scale.dtype, source.scale.shape);
  }
  kept.owner = std::move(owner);
  slots_ = slots;
  expert_bytes_ += static_cast<int64_t>(RoundedUp(sizes.all, kAlignment));
  if (++num_weights_ % kWeightsOfExpert == 0)
    slot_bytes_ = std::max(slot_bytes_, std::exchange(expert_bytes_, 0));
  return kept;
}

bool ExpertCache::Has(const ops::ExpertWeights& expert) const {
  return store_.Holds(expert.w1.data.as<const std::byte>());
}

template <typename T>
Status ExpertCache::Make(int64_t count, Buffer* buffer, T** data) {
  DSV4_ASSIGN_OR_RETURN_STATUS(*buffer, context_.memory().Allocate(static_cast<size_t>(count) * sizeof(T)));
  *data = static_cast<T*>(buffer->data());
  return {};
}

Status ExpertCache::MakeRoom(int64_t num_slots) {
  if (num_slots != state_.num_slots || slot_bytes_ != state_.slot_bytes) {
    num_slots_ = state_.num_slots = 0;
    state_.slots = nullptr;
    slots_memory_ = {};  // Before there is the new one.
    Result<Buffer> slots = context_.memory().Allocate(static_cast<size_t>(num_slots * slot_bytes_));
    if (!slots.has_value()) {
      return slots.error().WithContext(fmt::format("cached experts: room for {} of {:.2f} MB each", num_slots,
                                                   static_cast<double>(slot_bytes_) / 1e6));
    }
    slots_memory_ = std::move(*slots);
    state_.slots = static_cast<uint8_t*>(slots_memory_.data());
    num_slots_ = state_.num_slots = static_cast<int>(num_slots);
    state_.slot_bytes = slot_bytes_;
  }
  // Fresh ones, which are zero: work in flight may still read the old ones, which are freed behind it.
  DSV4_RETURN_IF_ERROR(Make(num_slots, &keys_, &state_.keys));
  DSV4_RETURN_IF_ERROR(Make(num_slots, &used_, &state_.used));
  DSV4_RETURN_IF_ERROR(Make(num_slots, &owners_, &state_.owners));
  DSV4_RETURN_IF_ERROR(Make(num_prepared_, &slot_of_, &state_.slot_of));
  DSV4_RETURN_IF_ERROR(Make(num_slots, &jobs_, &state_.jobs));
  DSV4_RETURN_IF_ERROR(Make(1, &clock_, &state_.clock));
  stream_.Restart(state_.num_slots);
  return {};
}

Status ExpertCache::Restart() {
  // No weight comes now.
  store_.Finish();
  numbered_.clear();
  num_prepared_ = num_weights_ / kWeightsOfExpert;
  if (words_.data() == nullptr) {
    DSV4_ASSIGN_OR_RETURN_STATUS(words_, AllocatePinned(context_.queue(), sizeof(ExpertCacheWords)));
    new (words_.data()) ExpertCacheWords();
  }
  state_.words = static_cast<ExpertCacheWords*>(words_.data());
  DSV4_RETURN_IF_ERROR(Make(num_prepared_, &experts_, &state_.experts));
  return MakeRoom(std::min(slots_, num_prepared_));
}

Status ExpertCache::Resize(int64_t slots) {
  slots_ = slots;
  if (num_prepared_ == 0) return {};  // Before the first step.
  const int64_t before = state_.num_slots;
  Status resized = MakeRoom(std::min(slots, num_prepared_));
  if (resized.ok()) return {};
  if (MakeRoom(before).ok()) {
    slots_ = before;
    return resized;
  }
  slots_ = 0;
  const Status none = MakeRoom(0);
  return none.ok() ? resized : none;
}

void ExpertCache::Forget() {
  store_.Forget();
  numbered_.clear();
  num_weights_ = expert_bytes_ = slot_bytes_ = slots_ = num_prepared_ = 0;
  num_slots_ = 0;
  state_ = {};
  for (Buffer* const memory :
       {&slots_memory_, &keys_, &used_, &owners_, &slot_of_, &experts_, &jobs_, &clock_, &words_})
    *memory = {};
  stream_.Restart(0);
}

Result<CachedLayer> ExpertCache::AddLayer(std::span<const ops::ExpertWeights> experts) {
  CachedLayer layer{.numbers = std::vector<int32_t>(experts.size(), 0), .on_device = {}};
  std::vector<CachedExpert> cached;
  for (size_t i = 0; i < experts.size(); ++i) {
    if (!Has(experts[i])) continue;
    CachedExpert& expert = cached.emplace_back();
    int64_t begin = 0;
    const Weight* const weights[] = {&experts[i].w1, &experts[i].w3, &experts[i].w2};
    for (size_t w = 0; w < std::size(weights); ++w) {
      const Sizes sizes = SizesOf(*weights[w]);
      expert.weights[w] = {.source = weights[w]->data.as<const uint8_t>(),
                           .num_bytes = static_cast<uint32_t>(sizes.all),
                           .scale_begin = static_cast<uint32_t>(sizes.scale_begin),
                           .slot_begin = static_cast<uint32_t>(begin)};
      begin += static_cast<int64_t>(RoundedUp(sizes.all, kAlignment));
    }
    if (begin > state_.slot_bytes) {
      return Error(Internal(fmt::format("cached experts: one of {}, the largest that was prepared has {}",
                                        Counted(begin, "byte"), state_.slot_bytes)));
    }
    layer.numbers[i] = static_cast<int32_t>(numbered_.size() + cached.size());
  }
  if (cached.empty()) return CachedLayer();
  const size_t before = numbered_.size();
  if ((before + cached.size()) * sizeof(CachedExpert) > experts_.num_bytes()) {
    return Error(Internal(fmt::format("cached experts: {} in layers, {} were prepared",
                                      before + cached.size(), experts_.num_bytes() / sizeof(CachedExpert))));
  }
  DSV4_TRY(context_.memory().CopyFromHost(state_.experts + before, cached.data(),
                                          cached.size() * sizeof(CachedExpert), nullptr));
  const size_t num_bytes = layer.numbers.size() * sizeof(int32_t);
  DSV4_ASSIGN_OR_RETURN(layer.on_device, context_.memory().Allocate(num_bytes));
  DSV4_TRY(context_.memory().CopyFromHost(layer.on_device.data(), layer.numbers.data(), num_bytes, nullptr));
  numbered_.insert(numbered_.end(), cached.begin(), cached.end());
  return layer;
}

bool ExpertCache::Streams(int64_t num_choices, int64_t num_places) const {
  return num_choices >= kStreamedChoicesOfExpert * num_places && stream_.has_room() &&
         state_.num_slots < num_prepared_;
}

ExpertCacheWords ExpertCache::counters() const {
  if (state_.words == nullptr) return {};
  const volatile ExpertCacheWords& words = *state_.words;
  return {.hits = words.hits, .misses = words.misses, .bytes = words.bytes};
}

}  // namespace dsv4::backend::cuda
