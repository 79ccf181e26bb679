// Exchanges of the model, written with the Communicator's own functions.
#pragma once

#include <span>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"

namespace dsv4::comm {

// Bytes of any length from `root` to all ranks; `data` is replaced on the others.
Status BroadcastBytes(Communicator& group, std::vector<std::byte>& data, int root,
                      Wait wait = Wait::kDeadline);

// Every rank brings numbers, as many as it likes, and gets all ranks' numbers, by rank.
Result<std::vector<std::vector<int32_t>>> GatherLists(Communicator& group, std::span<const int32_t> mine);

// Every rank brings one value, numbers without pointers, and gets all ranks' values, by rank.
template <typename T>
Result<std::vector<T>> GatherValues(Communicator& group, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(group.size()));
  const std::vector<int64_t> sizes(all.size(), sizeof(T));
  DSV4_TRY(
      group.AllGather(std::as_bytes(std::span(&mine, 1)), 1, sizes, std::as_writable_bytes(std::span(all))));
  return all;
}

// Every rank brings a status and gets the same one: Ok, or that of the lowest rank that has an error, "rank
// 2: ...".
Status Agree(Communicator& group, const Status& mine);

}  // namespace dsv4::comm
