#include "backend/cuda/cuda_context.h"

#include <fmt/format.h>

#include <cstring>

namespace dsv4::backend::cuda {
namespace {

constexpr size_t kMinStagingBytes = size_t{1} << 20;
constexpr size_t kStagingAlignment = 256;
// A model has one table for each layer; more than this many places are tests, or leaks.
constexpr size_t kMaxTables = 1024;

}  // namespace

CudaContext::~CudaContext() { FreeStaging(); }

void CudaContext::FreeStaging() {
  cudaStreamSynchronize(queue_->stream());
  for (StagingHalf& half : staging_) {
    if (half.host != nullptr) cudaFreeHost(half.host);
    if (half.done != nullptr) cudaEventDestroy(half.done);
    half = {};
  }
}

Status CudaContext::Begin(const OpRecord& record, const TensorView& operand) {
  DSV4_RETURN_IF_ERROR(queue_->Enter());
  if (operand.num_elements() > 0 && operand.device != queue_->device()) {
    return InvalidArgument(fmt::format("op {}: operands are not in the memory of CUDA device {}", record.name,
                                       queue_->device().index));
  }
  queue_->Record(record);
  return scratch_.Recycle();
}

Status CudaContext::End(const OpRecord& record) {
  const Status launched = queue_->Check(cudaGetLastError(), record.name);
  if (!launched.ok()) return launched.WithContext(fmt::format("op {}", record.ToString()));
  if (!synchronous_) return {};
  return queue_->Wait(record.name);
}

Result<void*> CudaContext::Scratch(size_t num_bytes) {
  DSV4_ASSIGN_OR_RETURN(const TensorView view,
                        scratch_.Allocate(DType::kU8, {static_cast<int64_t>(num_bytes)}));
  return view.data;
}

Status CudaContext::SwitchStagingHalf(size_t num_bytes) {
  if (num_bytes > staging_bytes_) {
    FreeStaging();
    staging_bytes_ = std::max({kMinStagingBytes, num_bytes, 2 * staging_bytes_});
    for (StagingHalf& half : staging_) {
      DSV4_RETURN_IF_ERROR(queue_->Check(cudaMallocHost(reinterpret_cast<void**>(&half.host), staging_bytes_),
                                         "cudaMallocHost"));
      DSV4_RETURN_IF_ERROR(
          queue_->Check(cudaEventCreateWithFlags(&half.done, cudaEventDisableTiming), "cudaEventCreate"));
      DSV4_ASSIGN_OR_RETURN_STATUS(half.device, memory_.Allocate(staging_bytes_));
    }
    return {};
  }
  DSV4_RETURN_IF_ERROR(
      queue_->Check(cudaEventRecord(staging_[staging_half_].done, queue_->stream()), "cudaEventRecord"));
  staging_half_ ^= 1;
  StagingHalf& half = staging_[staging_half_];
  half.used = 0;
  return queue_->Check(cudaEventSynchronize(half.done), "cudaEventSynchronize");
}

Result<const void*> CudaContext::Stage(const void* source, size_t num_bytes) {
  if (staging_[staging_half_].used + num_bytes > staging_bytes_) DSV4_TRY(SwitchStagingHalf(num_bytes));
  StagingHalf& half = staging_[staging_half_];
  std::byte* const host = half.host + half.used;
  std::byte* const device = static_cast<std::byte*>(half.device.data()) + half.used;
  if (num_bytes > 0) std::memcpy(host, source, num_bytes);
  half.used += (num_bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
  DSV4_TRY(queue_->Check(cudaMemcpyAsync(device, host, num_bytes, cudaMemcpyHostToDevice, queue_->stream()),
                         "staging of an op's tables"));
  return device;
}

Result<const void*> CudaContext::CachedTable(const void* key, std::span<const std::byte> bytes) {
  if (tables_.size() >= kMaxTables && !tables_.contains(key)) tables_.clear();
  Table& table = tables_[key];
  if (table.bytes.size() == bytes.size() &&
      std::memcmp(table.bytes.data(), bytes.data(), bytes.size()) == 0) {
    return table.device.data();
  }
  // A fresh buffer: work in flight may still read the old one, which is freed behind it.
  table.bytes.clear();
  DSV4_ASSIGN_OR_RETURN(table.device, memory_.Allocate(bytes.size()));
  DSV4_TRY(memory_.CopyFromHost(table.device.data(), bytes.data(), bytes.size(), nullptr));
  table.bytes.assign(bytes.begin(), bytes.end());
  return table.device.data();
}

}  // namespace dsv4::backend::cuda
