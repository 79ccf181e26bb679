// Device tables of a layer's expert pointers and formats, made and validated when the layer first runs.
#include "backend/cuda/runtime/expert_tables.h"

#include <algorithm>

namespace dsv4::backend::cuda {
namespace {

// Descriptors of up to so many are read again at every call.
constexpr size_t kFewExperts = 32;
// A model has one table for each layer; more than this many addresses are tests, or leaks.
constexpr size_t kMaxEntries = 1024;

void AddOnce(std::vector<ExpertVariant>& variants, const DeviceWeight& weight) {
  const ExpertVariant variant = {weight.kind, weight.x_group};
  if (std::ranges::find(variants, variant) == variants.end()) variants.push_back(variant);
}

// But for where it lies and how large its scales are.
bool Alike(DeviceWeight a, const DeviceWeight& b) {
  a.data = b.data;
  a.scale = b.scale;
  a.global_scale = b.global_scale;
  a.scale_codes = b.scale_codes;
  return a == b;
}

std::vector<DeviceWeight> Describe(std::span<const ops::ExpertWeights> experts, DType x_dtype) {
  std::vector<DeviceWeight> weights;
  weights.reserve(experts.size() * 3);
  for (const ops::ExpertWeights& expert : experts) {
    for (const Weight* weight : {&expert.w1, &expert.w3, &expert.w2}) {
      weights.push_back(MakeDeviceWeight(*weight, x_dtype));
    }
  }
  return weights;
}

}  // namespace

bool ExpertTables::Entry::Fits(std::span<const ops::ExpertWeights> experts, DType dtype, uint64_t now) const {
  return num_experts == experts.size() && x_dtype == dtype && first == experts.front().w1.data.data &&
         last == experts.back().w2.data.data && generation == now;
}

void ExpertTables::WeightsChange() {
  ++generation_;
  memory_.queue().DropRecords();
}

bool ExpertTables::Knows(std::span<const ops::ExpertWeights> experts, DType x_dtype) const {
  if (experts.size() <= kFewExperts) return false;
  const auto found = entries_.find(experts.data());
  return found != entries_.end() && found->second.Fits(experts, x_dtype, generation_);
}

Result<const ExpertTable*> ExpertTables::Find(std::span<const ops::ExpertWeights> experts, DType x_dtype) {
  const bool few = experts.size() <= kFewExperts;
  if (entries_.size() >= kMaxEntries && !entries_.contains(experts.data())) {
    memory_.queue().DropRecords();
    entries_.clear();
  }
  Entry& entry = entries_[experts.data()];
  const bool alike = entry.Fits(experts, x_dtype, generation_);
  if (alike && !few) return &entry.table;
  std::vector<DeviceWeight> weights = Describe(experts, x_dtype);
  if (alike && weights == entry.host) return &entry.table;

  // A fresh buffer: work in flight may still read the old one, which is freed behind it.
  if (entry.num_experts > 0) memory_.queue().DropRecords();
  entry = {};
  const size_t num_bytes = weights.size() * sizeof(DeviceWeight);
  DSV4_ASSIGN_OR_RETURN(entry.device, memory_.Allocate(num_bytes));
  DSV4_TRY(memory_.CopyFromHost(entry.device.data(), weights.data(), num_bytes, nullptr));
  for (size_t i = 0; i < weights.size(); ++i) {
    AddOnce(i % 3 == 2 ? entry.table.down : entry.table.gate_up, weights[i]);
  }
  entry.table.w1 = weights[0];
  entry.table.w2 = weights[2];
  entry.table.alike = true;
  entry.table.copied_in_bulk = true;
  for (size_t i = 0; i < weights.size(); ++i) {
    DeviceWeight& shape = i % 3 == 2 ? entry.table.w2 : entry.table.w1;
    entry.table.alike = entry.table.alike && Alike(weights[i], shape);
    shape.scale_codes.least = std::min(shape.scale_codes.least, weights[i].scale_codes.least);
    shape.scale_codes.largest = std::max(shape.scale_codes.largest, weights[i].scale_codes.largest);
    entry.table.copied_in_bulk = entry.table.copied_in_bulk && IsBulkAligned(weights[i]);
  }
  entry.table.weights = static_cast<const DeviceWeight*>(entry.device.data());
  entry.x_dtype = x_dtype;
  entry.first = experts.front().w1.data.data;
  entry.last = experts.back().w2.data.data;
  entry.generation = generation_;
  entry.num_experts = experts.size();
  if (few) entry.host = std::move(weights);
  return &entry.table;
}

}  // namespace dsv4::backend::cuda
