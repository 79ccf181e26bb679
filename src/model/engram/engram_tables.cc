// Rows of n-gram tables: asked for by page, then decoded in parallel.
#include "model/engram/engram_tables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "base/text.h"
#include "formats/number_formats.h"
#include "io/mapped_file.h"

namespace dsv4::model {
namespace {

using ByteRange = std::span<const std::byte>;

// Bytes of one row of codes or scales; empty where a table has no scales.
ByteRange CodeBytes(const TensorView& view, int64_t row) {
  if (view.is_null()) return {};
  const int64_t bytes = view.num_bytes() / view.shape[0];
  return {static_cast<const std::byte*>(view.data) + row * bytes, static_cast<size_t>(bytes)};
}

ByteRange ScaleBytes(const Weight& weight, int64_t row) {
  return CodeBytes(weight.scale, row / weight.block_rows);
}

std::vector<int64_t> Distinct(std::span<const int64_t> rows) {
  std::vector<int64_t> distinct(rows.begin(), rows.end());
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  return distinct;
}

// Runs of whole pages that hold `ranges`, which lie in one tensor.
std::vector<ByteRange> Pages(std::span<const ByteRange> ranges, int64_t* num_pages) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::vector<ByteRange> runs;
  uintptr_t end = 0;
  for (const ByteRange& range : ranges) {
    const auto first = std::max(end, reinterpret_cast<uintptr_t>(range.data()) / page * page);
    const auto last = (reinterpret_cast<uintptr_t>(range.data()) + range.size() + page - 1) / page * page;
    if (first >= last) continue;
    if (first == end && !runs.empty()) {
      runs.back() = {runs.back().data(), runs.back().size() + (last - first)};
    } else {
      runs.emplace_back(reinterpret_cast<const std::byte*>(first), last - first);
    }
    *num_pages += static_cast<int64_t>((last - first) / page);
    end = last;
  }
  return runs;
}

void Store(std::span<const float> values, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, values.data(), values.size_bytes());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = Bf16FromFloat(values[i]);
    std::memcpy(to + 2 * i, &bits, sizeof(bits));
  }
}

}  // namespace

Result<std::unique_ptr<EngramTables>> EngramTables::Create(std::shared_ptr<const io::Checkpoint> checkpoint,
                                                           std::vector<EngramTable> tables) {
  std::unique_ptr<EngramTables> made(new EngramTables(std::move(checkpoint), std::move(tables)));
  for (const EngramTable& table : made->tables_) {
    DSV4_TRY(ValidateWeight(table.rows, table.name));
    if (made->width_ == 0) made->width_ = table.rows.cols;
    if (table.rows.cols != made->width_) {
      return Error(InvalidArgument(fmt::format("{}: rows of {}, want {} as the first table has", table.name,
                                               Counted(table.rows.cols, "value"), made->width_)));
    }
    for (const TensorView* view : {&table.rows.data, &table.rows.scale}) {
      if (view->is_null()) continue;
      const ByteRange bytes(static_cast<const std::byte*>(view->data),
                            static_cast<size_t>(view->num_bytes()));
      // Neighbours of a row are no more likely to be wanted than others.
      io::AdviseRandom(bytes);
      // Numbers that are made come a whole tensor at a time, so once for all passes.
      if (made->checkpoint_ != nullptr) made->checkpoint_->Fetch({&bytes, 1});
    }
  }
  return made;
}

void EngramTables::Ask(int table, std::span<const int64_t> rows) {
  const Weight& weight = tables_[static_cast<size_t>(table)].rows;
  std::vector<ByteRange> codes;
  std::vector<ByteRange> scales;
  for (const int64_t row : Distinct(rows)) {
    if (row < 0 || row >= weight.rows) continue;  // Read names it.
    codes.push_back(CodeBytes(weight.data, row));
    if (!weight.scale.is_null()) scales.push_back(ScaleBytes(weight, row));
    ++num_rows_asked_;
  }
  for (const std::vector<ByteRange>& ranges : {codes, scales}) {
    if (!ranges.empty()) read_ahead_.Add(Pages(ranges, &num_pages_asked_));
  }
}

Status EngramTables::Read(int table, std::span<const int64_t> rows, ThreadPool& threads, DType dtype,
                          std::span<std::byte> values) const {
  const EngramTable& of = tables_[static_cast<size_t>(table)];
  const int64_t bytes = width_ * ElementBytes(dtype);
  if ((dtype != DType::kBF16 && dtype != DType::kF32) ||
      static_cast<int64_t>(values.size()) != bytes * static_cast<int64_t>(rows.size())) {
    return InvalidArgument(fmt::format("{}: {} of {} as {} to {}; want BF16 or F32 in as many", of.name,
                                       Counted(rows.size(), "row"), Counted(width_, "value"),
                                       DTypeName(dtype), Counted(values.size(), "byte")));
  }
  for (const int64_t row : rows) {
    if (row < 0 || row >= of.rows.rows)
      return OutOfRange(fmt::format("{}: row {}, want 0 to {}", of.name, row, of.rows.rows - 1));
  }
  std::atomic<int64_t> bad_row = -1;
  constexpr int64_t kRowsPerTask = 16;
  threads.ParallelFor(static_cast<int64_t>(rows.size()), kRowsPerTask, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(width_));
    for (int64_t i = begin; i < end; ++i) {
      DequantizeRow(of.rows, rows[static_cast<size_t>(i)], row.data());
      if (!std::ranges::all_of(row, [](float value) { return std::isfinite(value); }))
        bad_row = rows[static_cast<size_t>(i)];
      Store(row, dtype, values.data() + i * bytes);
    }
  });
  DSV4_RETURN_IF_ERROR(io::LostFile().WithContext(of.name));
  if (bad_row >= 0)
    return DataLoss(fmt::format("{}: row {} has a code or scale that is no number", of.name, bad_row.load()));
  return {};
}

}  // namespace dsv4::model
