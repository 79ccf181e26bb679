// Measured bounds of the machine: read bandwidth of all threads, and multiply-adds a second of each tier.
#include "backend/cpu/machine_bounds.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "backend/cpu/kernels/tile_config.h"

namespace dsv4::backend::cpu {

namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

volatile float g_sink;  // Keeps results alive.
volatile uint64_t g_integer_sink;

constexpr int kPasses = 5;
constexpr int kSteps = 1 << 20;
constexpr int kChains = 12;  // Enough independent sums to hide the latency of an addition.

// Each returns the multiply-adds done.
double ScalarLoop() {
  float sums[kChains] = {};
  for (int step = 0; step < kSteps; ++step) {
    for (float& sum : sums) sum = sum * 0.999F + 1.0F;
  }
  for (const float sum : sums) g_sink = sum;
  return 1.0 * kSteps * kChains;
}

__attribute__((target("avx2,fma"))) double Avx2Loop() {
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_set1_ps(1.0F);
  const __m256 factor = _mm256_set1_ps(0.999F);
  for (int step = 0; step < kSteps; ++step) {
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(factor, factor, sum);
  }
  for (const __m256 sum : sums) g_sink = _mm256_cvtss_f32(sum);
  return 8.0 * kSteps * kChains;
}

__attribute__((target("avx512f"))) double Avx512Loop() {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0F);
  const __m512 factor = _mm512_set1_ps(0.999F);
  for (int step = 0; step < kSteps; ++step) {
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(factor, factor, sum);
  }
  for (const __m512 sum : sums) g_sink = _mm512_cvtss_f32(sum);
  return 16.0 * kSteps * kChains;
}

__attribute__((target("avx512f,avx512bf16"))) double Bf16Loop() {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0F);
  const __m512bh factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3F7F3F7F));
  for (int step = 0; step < kSteps; ++step) {
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, factor, factor);
  }
  for (const __m512 sum : sums) g_sink = _mm512_cvtss_f32(sum);
  return 32.0 * kSteps * kChains;
}

// Four tiles of sums, as the kernels have.
double TileLoop() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = TileConfig::kRows;
    config.row_bytes[i] = TileConfig::kRowBytes;
  }
  constexpr int kTileSteps = kSteps / 16;
  config.Load();
  for (int step = 0; step < kTileSteps; ++step) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm1\n\t"
        "tdpbf16ps %tmm7, %tmm4, %tmm2\n\t"
        "tdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  TileConfig::Release();
  return 4.0 * 16 * 16 * 32 * kTileSteps;
}

}  // namespace

Result<ReadMemory> ReadMemory::Allocate() {
  constexpr size_t kBytes = size_t{512} << 20;
  DSV4_ASSIGN_OR_RETURN(HugePages pages, HugePages::Map("memory to measure the bandwidth", kBytes));
  ReadMemory memory;
  memory.words_ = {reinterpret_cast<uint64_t*>(pages.bytes().data()), kBytes / sizeof(uint64_t)};
  memory.pages_ = std::make_shared<HugePages>(std::move(pages));
  // All different, so that no one keeps equal pages once only, as a hypervisor may.
  for (size_t i = 0; i < memory.words_.size(); ++i) memory.words_[i] = i * 0x9E3779B97F4A7C15;
  return memory;
}

double ReadMemory::Bandwidth(ThreadPool& threads) const {
  constexpr int64_t kBlock = 1 << 16;
  const auto begin = Clock::now();
  threads.ParallelFor(static_cast<int64_t>(words_.size()) / kBlock, 1, [&](int64_t first, int64_t last) {
    const uint64_t* const words = words_.data();
    uint64_t sums[8] = {};
    for (int64_t i = first * kBlock; i < last * kBlock; i += 8) {
      for (int64_t s = 0; s < 8; ++s) sums[s] += words[i + s];
    }
    for (const uint64_t sum : sums) g_integer_sink = sum;
  });
  return static_cast<double>(num_bytes()) / Seconds(begin);
}

double MultiplyAddRate(ThreadPool& threads, Isa isa) {
  const auto loop = isa == Isa::kScalar       ? ScalarLoop
                    : isa == Isa::kAvx2       ? Avx2Loop
                    : isa == Isa::kAvx512     ? Avx512Loop
                    : isa == Isa::kAvx512Bf16 ? Bf16Loop
                                              : TileLoop;
  std::vector<double> done(static_cast<size_t>(threads.num_threads()));
  const auto begin = Clock::now();
  threads.ParallelFor(threads.num_threads(), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) done[static_cast<size_t>(i)] = loop();
  });
  double total = 0;
  for (const double count : done) total += count;
  return total / Seconds(begin);
}

double MultiplyAddPeak(ThreadPool& threads, Isa isa) {
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) best = std::max(best, MultiplyAddRate(threads, isa));
  return best;
}

}  // namespace dsv4::backend::cpu
