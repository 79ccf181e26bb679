#include "backend/cpu/machine_bounds.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace dsv4::backend::cpu {

namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

volatile float g_sink;  // Keeps results alive.
volatile uint64_t g_integer_sink;

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

}  // namespace

double ReadBandwidth(ThreadPool& threads) {
  constexpr int64_t kWords = int64_t{64} << 20;  // 512 MB.
  const std::vector<uint64_t> memory(kWords, 1);
  constexpr int64_t kBlock = 1 << 16;
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto begin = Clock::now();
    threads.ParallelFor(kWords / kBlock, 1, [&](int64_t first, int64_t last) {
      uint64_t sums[8] = {};
      for (int64_t i = first * kBlock; i < last * kBlock; i += 8) {
        for (int64_t s = 0; s < 8; ++s) sums[s] += memory[static_cast<size_t>(i + s)];
      }
      for (const uint64_t sum : sums) g_integer_sink = sum;
    });
    best = std::max(best, static_cast<double>(kWords) * 8 / Seconds(begin));
  }
  return best;
}

double MultiplyAddPeak(ThreadPool& threads, Isa isa) {
  const auto loop = isa == Isa::kScalar   ? ScalarLoop
                    : isa == Isa::kAvx2   ? Avx2Loop
                    : isa == Isa::kAvx512 ? Avx512Loop
                                          : Bf16Loop;
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    std::vector<double> done(static_cast<size_t>(threads.num_threads()));
    const auto begin = Clock::now();
    threads.ParallelFor(threads.num_threads(), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) done[static_cast<size_t>(i)] = loop();
    });
    double total = 0;
    for (const double count : done) total += count;
    best = std::max(best, total / Seconds(begin));
  }
  return best;
}

}  // namespace dsv4::backend::cpu
