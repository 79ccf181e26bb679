// ExpertTiers: layers whose experts are not all in the device's memory (ops::WeightTier), and routed_experts
// over them.
//
// The choice of where an expert is multiplied is made when its weights are prepared, and stays. A term has
// the same bits in every step.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/kernels/moe/host_terms.h"
#include "backend/cuda/kernels/moe/terms_work.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/tiers/expert_cache.h"
#include "ops/routed_experts.h"
#include "tiers/host_experts.h"

namespace dsv4::backend::cuda {

// A layer whose experts are not all resident.
struct TieredLayer {
  // Experts that the device multiplies, by id, where the host multiplies others.
  std::vector<ops::ExpertWeights> device;
  int64_t num_host = 0;
  int32_t number = 0;  // For HostExperts.
  Buffer places;       // HostTermsWork::places
  CachedLayer cached;  // Cached ones of those that the device multiplies.
};

struct HostTierOptions {
  ops::Backend backend;  // Backend of the host; its table may be empty: none.
  std::chrono::milliseconds deadline{std::chrono::minutes(2)};  // For the terms of one request.
};

class ExpertTiers {
 public:
  ExpertTiers(CudaContext& context, HostTierOptions options)
      : context_(context), options_(std::move(options)), cache_(context) {}

  // Cache of experts of the tier kCached.
  ExpertCache& cache() { return cache_; }
  // Whether there is a backend that multiplies experts of the tier kHost.
  bool has_host() const { return options_.backend.table.expert_terms != nullptr; }
  // Layer of the experts that the span's address names, as ExpertTables::Find; null: all are resident.
  Result<const TieredLayer*> Find(std::span<const ops::ExpertWeights> experts);
  // Whether Find would not look at all of them again; they were valid when it did.
  bool Knows(std::span<const ops::ExpertWeights> experts) const;
  // Brings the cached ones of those that `indices` names, by their rows in `table`, which is of all that the
  // device multiplies.
  void Bring(const TieredLayer& layer, const ExpertTable& table, int64_t num_places,
             const TensorView& indices);
  // Whether a pass with so many choices of a layer's experts brings the cached ones before it knows them.
  // Then StreamTerms is for it, and else Bring.
  bool Streams(const TieredLayer& layer, int64_t num_choices, int64_t num_experts) const;
  // Terms of all that the device multiplies, which are those of the table: part by part, while others come.
  Status StreamTerms(const TieredLayer& layer, const ExpertTable& table, const TermsWork& work) {
    return StreamTerms(
        layer, table, work, [] { return Status(); }, [] { return Status(); });
  }
  // Valid arguments; a layer that Find gave for args.experts, some of which the host multiplies.
  Status RoutedExperts(const TieredLayer& layer, const ops::RoutedExpertsArgs& args);

  // Weights come or change.
  void WeightsChange() { ++generation_; }
  // They are gone, and nothing is in flight: what was made of them goes too. The queue has no records of
  // steps.
  void Forget();
  // Null until a layer has experts on the host.
  const tiers::HostExperts* host() const { return host_.get(); }

 private:
  struct Entry {
    size_t num_experts = 0;
    const void* first = nullptr;
    const void* last = nullptr;
    uint64_t generation = 0;
    std::unique_ptr<TieredLayer> layer;  // Null: all are resident.

    bool Fits(std::span<const ops::ExpertWeights> experts, uint64_t now) const;
  };

  // With what comes in front of each part, and behind it.
  Status StreamTerms(const TieredLayer& layer, const ExpertTable& table, const TermsWork& work,
                     const std::function<Status()>& before, const std::function<Status()>& behind);
  Result<std::unique_ptr<TieredLayer>> MakeLayer(std::span<const ops::ExpertWeights> experts);
  Status Start();

  CudaContext& context_;
  const HostTierOptions options_;
  uint64_t generation_ = 0;
  uint64_t cache_generation_ = 0;  // Generation of the cache that knows these layers.
  ExpertCache cache_;
  std::map<const void*, Entry> entries_;
  Buffer state_;                              // HostTermsState
  std::unique_ptr<tiers::HostExperts> host_;  // Last: its thread ends before the rest goes.
};

}  // namespace dsv4::backend::cuda
