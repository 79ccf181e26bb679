#include "comm/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace dsv4::comm {
namespace {

// A status as every rank sends it: of one size, so that one exchange is enough.
struct StatusRecord {
  uint8_t code = 0;
  uint16_t length = 0;
  std::array<char, 240> message = {};
};

}  // namespace

Status BroadcastBytes(Communicator& group, std::vector<std::byte>& data, int root, Wait wait) {
  uint64_t num_bytes = data.size();
  DSV4_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(&num_bytes, 1)), root, wait));
  if (group.rank() != root) data.resize(num_bytes);
  return group.Broadcast(data, root);
}

Status AllReduceRows(Communicator& group, std::span<const float> rows, std::span<const int32_t> targets,
                     int64_t width, std::span<float> out) {
  const auto size = static_cast<size_t>(group.size());
  DSV4_CHECK(rows.size() == targets.size() * static_cast<size_t>(width))
      << rows.size() << " floats for " << targets.size() << " rows of " << width;
  std::vector<int64_t> sizes(size, sizeof(int64_t));
  std::vector<int64_t> counts(size);
  const auto my_count = static_cast<int64_t>(targets.size());
  DSV4_RETURN_IF_ERROR(group.AllGather(std::as_bytes(std::span(&my_count, 1)), 1, sizes,
                                       std::as_writable_bytes(std::span(counts))));
  int64_t num_rows = 0;
  for (const int64_t count : counts) num_rows += count;

  std::vector<int32_t> all_targets(static_cast<size_t>(num_rows));
  for (size_t r = 0; r < size; ++r) sizes[r] = counts[r] * static_cast<int64_t>(sizeof(int32_t));
  DSV4_RETURN_IF_ERROR(
      group.AllGather(std::as_bytes(targets), 1, sizes, std::as_writable_bytes(std::span(all_targets))));
  std::vector<float> all_rows(static_cast<size_t>(num_rows * width));
  for (size_t r = 0; r < size; ++r) sizes[r] = counts[r] * width * static_cast<int64_t>(sizeof(float));
  DSV4_RETURN_IF_ERROR(
      group.AllGather(std::as_bytes(rows), 1, sizes, std::as_writable_bytes(std::span(all_rows))));

  std::fill(out.begin(), out.end(), 0.0F);
  const auto num_targets = static_cast<int64_t>(out.size()) / std::max<int64_t>(width, 1);
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t target = all_targets[static_cast<size_t>(i)];
    if (target < 0 || target >= num_targets) {
      return Internal(fmt::format("all-reduce of rows: target {}, want 0 to {}", target, num_targets - 1));
    }
    const float* const row = all_rows.data() + i * width;
    float* const sum = out.data() + target * width;
    for (int64_t d = 0; d < width; ++d) sum[d] += row[d];
  }
  return {};
}

Status Agree(Communicator& group, const Status& mine) {
  StatusRecord record;
  record.code = static_cast<uint8_t>(mine.code());
  record.length = static_cast<uint16_t>(std::min(mine.message().size(), record.message.size()));
  std::memcpy(record.message.data(), mine.message().data(), record.length);
  std::vector<StatusRecord> all(static_cast<size_t>(group.size()));
  const std::vector<int64_t> sizes(all.size(), sizeof(StatusRecord));
  DSV4_RETURN_IF_ERROR(group.AllGather(std::as_bytes(std::span(&record, 1)), 1, sizes,
                                       std::as_writable_bytes(std::span(all))));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].code == 0) continue;
    return {static_cast<StatusCode>(all[r].code),
            fmt::format("rank {}: {}", r, std::string_view(all[r].message.data(), all[r].length))};
  }
  return {};
}

}  // namespace dsv4::comm
