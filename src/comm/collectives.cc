// Broadcasts of bytes, gathered lists and agreement on a status, over any communicator.
#include "comm/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

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

Result<std::vector<std::vector<int32_t>>> GatherLists(Communicator& group, std::span<const int32_t> mine) {
  const auto size = static_cast<size_t>(group.size());
  DSV4_ASSIGN_OR_RETURN(const std::vector<int64_t> counts,
                        GatherValues(group, static_cast<int64_t>(mine.size())));
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<int32_t> all(static_cast<size_t>(total));
  std::vector<int64_t> sizes(size);
  for (size_t r = 0; r < size; ++r) sizes[r] = counts[r] * static_cast<int64_t>(sizeof(int32_t));
  DSV4_TRY(group.AllGather(std::as_bytes(mine), 1, sizes, std::as_writable_bytes(std::span(all))));
  std::vector<std::vector<int32_t>> lists;
  auto begin = all.begin();
  for (const int64_t count : counts) {
    lists.emplace_back(begin, begin + count);
    begin += count;
  }
  return lists;
}

Status Agree(Communicator& group, const Status& mine) {
  StatusRecord record;
  record.code = static_cast<uint8_t>(mine.code());
  record.length = static_cast<uint16_t>(std::min(mine.message().size(), record.message.size()));
  std::memcpy(record.message.data(), mine.message().data(), record.length);
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<StatusRecord> all, GatherValues(group, record));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].code == 0) continue;
    // Bytes of another process: no longer than they are, and of a code that there is.
    const size_t length = std::min<size_t>(all[r].length, all[r].message.size());
    return {static_cast<StatusCode>(std::min(all[r].code, static_cast<uint8_t>(StatusCode::kInternal))),
            fmt::format("rank {}: {}", r, std::string_view(all[r].message.data(), length))};
  }
  return {};
}

}  // namespace dsv4::comm
