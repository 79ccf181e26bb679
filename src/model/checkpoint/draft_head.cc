// Quantised copy of the head for drafts, in FP8 or NVFP4, made by all threads.
#include "model/checkpoint/draft_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/parallel.h"
#include "base/thread_count.h"
#include "formats/quantize.h"

namespace dsv4::model {
namespace {

constexpr int64_t kFp8BlockSize = 128;

// Some rows as fp32.
std::vector<float> Values(const Weight& head, int64_t begin, int64_t end) {
  std::vector<float> values(static_cast<size_t>((end - begin) * head.cols));
  for (int64_t row = begin; row < end; ++row)
    DequantizeRow(head, row, values.data() + (row - begin) * head.cols);
  return values;
}

// Calls body(begin, end) for runs of rows, a block of scales or several in each.
void ForRows(int64_t num_rows, const std::function<void(int64_t, int64_t)>& body) {
  constexpr int kMostThreads = 16;
  ThreadPool pool(CoresUpTo(kMostThreads));
  const int64_t num_blocks = (num_rows + kFp8BlockSize - 1) / kFp8BlockSize;
  pool.ParallelFor(num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      body(block * kFp8BlockSize, std::min(num_rows, (block + 1) * kFp8BlockSize));
  });
}

Status FillFp8(const Weight& head, const Weight& copy) {
  std::atomic<bool> finite = true;
  ForRows(head.rows, [&](int64_t begin, int64_t end) {
    const std::vector<float> values = Values(head, begin, end);
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
      finite = false;
      return;
    }
    const QuantizedMatrix rows =
        QuantizeFp8Block(values, end - begin, head.cols, kFp8BlockSize, kFp8BlockSize);
    std::memcpy(copy.data.as<uint8_t>() + begin * copy.cols, rows.data.data(), rows.data.size());
    std::memcpy(copy.scale.as<uint8_t>() + begin / kFp8BlockSize * copy.scale.shape[1], rows.scale.data(),
                rows.scale.size());
  });
  return finite ? Status() : DataLoss("head: a number is not finite");
}

Status FillNvFp4(const Weight& head, Weight& copy) {
  std::atomic<float> largest = 0.0F;
  std::atomic<bool> finite = true;
  ForRows(head.rows, [&](int64_t begin, int64_t end) {
    float mine = 0.0F;
    for (const float value : Values(head, begin, end)) {
      if (!std::isfinite(value)) finite = false;
      mine = std::max(mine, std::abs(value));
    }
    float seen = largest;
    while (mine > seen && !largest.compare_exchange_weak(seen, mine)) {
    }
  });
  if (!finite) return DataLoss("head: a number is not finite");
  copy.global_scale = NvFp4GlobalScale(largest);
  ForRows(head.rows, [&](int64_t begin, int64_t end) {
    const QuantizedMatrix rows =
        QuantizeNvFp4(Values(head, begin, end), end - begin, head.cols, copy.global_scale);
    std::memcpy(copy.data.as<uint8_t>() + begin * copy.cols / 2, rows.data.data(), rows.data.size());
    std::memcpy(copy.scale.as<uint8_t>() + begin * copy.cols / kNvFp4Block, rows.scale.data(),
                rows.scale.size());
  });
  return {};
}

}  // namespace

Result<DraftHead> ParseDraftHead(std::string_view text) {
  if (text == "stored") return DraftHead::kStored;
  if (text == "fp8") return DraftHead::kFp8;
  if (text == "nvfp4") return DraftHead::kNvFp4;
  return Error(InvalidArgument(fmt::format("draft head: got '{}', want stored, fp8 or nvfp4", text)));
}

Result<Weight> MakeDraftHead(const Weight& head, DraftHead format, bool sizes_only,
                             std::vector<Buffer>& copies) {
  const bool fp8 = format == DraftHead::kFp8;
  const int64_t unit = fp8 ? kFp8BlockSize : kNvFp4Block;
  if (format == DraftHead::kStored || head.format != WeightFormat::kPlain || head.cols % unit != 0)
    return Weight();
  Weight copy;
  copy.format = fp8 ? WeightFormat::kFp8Block : WeightFormat::kNvFp4;
  copy.rows = head.rows;
  copy.cols = head.cols;
  const auto allocate = [&](DType dtype, const Shape& shape) -> Result<TensorView> {
    DSV4_ASSIGN_OR_RETURN(Buffer buffer, HostMemory().Allocate(static_cast<size_t>(shape.num_elements())));
    copies.push_back(buffer);
    return TensorView::Contiguous(buffer.data(), dtype, shape);
  };
  if (fp8) {
    copy.block_rows = copy.block_cols = kFp8BlockSize;
    DSV4_ASSIGN_OR_RETURN(copy.data, allocate(DType::kF8E4M3, {copy.rows, copy.cols}));
    DSV4_ASSIGN_OR_RETURN(
        copy.scale, allocate(DType::kF8E8M0,
                             {(copy.rows + kFp8BlockSize - 1) / kFp8BlockSize, copy.cols / kFp8BlockSize}));
  } else {
    DSV4_ASSIGN_OR_RETURN(copy.data, allocate(DType::kU8, {copy.rows, copy.cols / 2}));
    DSV4_ASSIGN_OR_RETURN(copy.scale, allocate(DType::kF8E4M3, {copy.rows, copy.cols / kNvFp4Block}));
  }
  if (sizes_only) return copy;
  DSV4_TRY(fp8 ? FillFp8(head, copy) : FillNvFp4(head, copy));
  return copy;
}

}  // namespace dsv4::model
