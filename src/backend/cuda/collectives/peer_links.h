// Addresses that a kernel is told of the other ranks' memory (ll_exchange.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace dsv4::backend::cuda {

inline constexpr int kMaxPeers = 8;

struct ExchangeState;
struct ExchangeWords;

// Memory that every kernel needs that takes part in an exchange.
struct PeerLinks {
  std::byte* mailboxes[kMaxPeers] = {};  // Mailboxes of every rank, as this one sees them.
  ExchangeState* state = nullptr;
  volatile ExchangeWords* words = nullptr;
  int64_t deadline_ns = 0;
  int rank = 0;
  int size = 0;  // 0: there is no exchange.
  int64_t pushed =
      0;  // Not 0: a kernel in front has sent this rank's part of a sum (kernels/gemm/gemv_pair.cu).
};

// Rows of some bytes each; one after the other where the stride is that many bytes.
struct ExchangePiece {
  std::byte* data = nullptr;
  int64_t stride = 0;
  int64_t row_bytes = 0;
};

struct ExchangeParams : PeerLinks {
  ExchangePiece send[kMaxPeers];     // To every rank; this one's own goes to its `receive`.
  ExchangePiece receive[kMaxPeers];  // Not for sums.
  float* sum = nullptr;              // Sums: of what all send to this rank, and it to itself, in rank order.
  int64_t num_rows = 0;
  int64_t begin = 0;  // Bytes of every piece that have gone before, a multiple of 16.
  int64_t share = 0;  // Bytes of a piece a block, a multiple of 16.
};

static_assert(std::has_unique_object_representations_v<ExchangeParams>);  // No padding (ClearPadding).
using ExchangeKernel = void (*)(ExchangeParams);

// The most bytes of a piece that goes by LL words. First any piece; then a sum, which kernels around it do
// for up to 8 tokens of 7168. Last a few rows, which kernels exchange too: attention's parts of 32 heads for
// 8 tokens.
inline constexpr int64_t kMaxLlBytes = int64_t{72} << 10;
inline constexpr int64_t kMaxLlSumBytes = int64_t{224} << 10;
inline constexpr int64_t kMaxLlRowsBytes = int64_t{520} << 10;
inline constexpr int64_t kMaxLlRows = 8;

}  // namespace dsv4::backend::cuda
