// Words and payloads in memory that host and device both see (host_experts.h).
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace dsv4::tiers {

// One request at a time is in flight. Each word has one writer, which writes the number last.
struct ExchangeWords {
  // The device's.
  alignas(64) uint32_t asked = 0;  // 0: nothing yet.
  int32_t layer = 0;
  int32_t num_rows = 0;
  int32_t payload = 0;
  float limit = 0.0F;
  // The host's.
  alignas(64) uint32_t answered = 0;
  uint32_t failed = 0;  // The last request that it could not answer.
};

// Payload of requests of one shape; memory that both see, and that lives as long as HostExperts.
struct Payload {
  int32_t index = 0;
  DType dtype = DType::kBF16;
  int64_t dim = 0;
  int64_t top_k = 0;
  void* x = nullptr;  // [kMaxRows, dim] dtype
  int32_t* indices =
      nullptr;  // [kMaxRows, top_k]: indices in the layer's experts; as many as those: not the host's.
  float* weights = nullptr;  // [kMaxRows, top_k]
  void* terms = nullptr;     // [kMaxRows, top_k, dim] dtype; rows of others' choices are left as they are.
};

}  // namespace dsv4::tiers
