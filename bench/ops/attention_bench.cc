// attention of one query, at three depths.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/ops/bench.h"
#include "formats/number_formats.h"

namespace dsv4::bench {

void BenchAttention(const Machine& machine, const Wanted& wanted) {
  constexpr int64_t kHeads = 64;
  constexpr int64_t kDim = 512;
  constexpr int64_t kWindow = 128;
  for (const int64_t entries : {0, 512, 8192}) {
    const std::string what = fmt::format("attention 64 x 512, {} rows", kWindow + entries);
    if (!wanted(what)) continue;
    std::vector<uint16_t> q = Normals(kHeads * kDim);
    std::vector<uint16_t> o(q.size());
    std::vector<uint16_t> ring = Normals(kWindow * kDim);
    std::vector<uint16_t> page = Normals(std::max<int64_t>(1, entries) * kDim);
    std::vector<float> sink(kHeads, 0.0F);
    void* const pages[] = {page.data()};
    const int64_t ratio = entries == 0 ? 0 : 4;
    const ops::AttentionSequence sequence = {
        .token_begin = 0,
        .num_tokens = 1,
        .first_position = std::max(kWindow, entries * 4) - 1,
        .window = {ring.data(), kWindow, kDim, DType::kBF16},
        .entries = {pages, std::max<int64_t>(1, entries), entries, kDim, DType::kBF16}};
    const TensorView sinks = TensorView::Contiguous(static_cast<void*>(sink.data()), DType::kF32, {kHeads});
    const ops::AttentionArgs args = {View(q, {1, kHeads, kDim}),
                                     sinks,
                                     {},
                                     View(o, {1, kHeads, kDim}),
                                     static_cast<float>(1.0 / std::sqrt(static_cast<double>(kDim))),
                                     kWindow,
                                     ratio,
                                     std::span(&sequence, 1)};
    const Timing timing =
        Time(machine, [&] { Require(machine.backend.table.attention(*machine.backend.context, args)); });
    // Rows of normals: an average of at least 128 of them has a small mean square, but not zero.
    double square = 0;
    for (const uint16_t value : o) square += std::pow(static_cast<double>(FloatFromBf16(value)), 2);
    if (!(square > 0 && square < static_cast<double>(o.size())))
      Fail("attention: the output is not an average");
    const double rows = static_cast<double>(kWindow + entries);
    Print(machine, what, timing, rows * kDim * 2, 2 * rows * static_cast<double>(kHeads * kDim));
  }
}

}  // namespace dsv4::bench
