// Shares of owners in rooms, and the owner that an address stands for.
#include "server/http/shares.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <xxhash.h>

namespace dsv4::server {

uint64_t OwnerOfAddress(const std::string& address) {
  constexpr size_t kNetworkBytes = 7;  // A /56.
  if (address.empty()) return 0;
  in6_addr v6;
  // An interface's name may follow a local address.
  const bool is_v6 = ::inet_pton(AF_INET6, address.substr(0, address.find('%')).c_str(), &v6) == 1;
  const bool is_v4 = is_v6 && IN6_IS_ADDR_V4MAPPED(&v6);
  if (is_v6 && !is_v4) return XXH3_64bits(&v6, kNetworkBytes);
  const size_t begin = is_v4 ? address.rfind(':') + 1 : 0;
  return XXH3_64bits(address.data() + begin, address.size() - begin);
}

bool SharedRoom::Take(uint64_t owner, uint64_t num_bytes) {
  const auto found = by_owner_.find(owner);
  const uint64_t has = found == by_owner_.end() ? 0 : found->second;
  const uint64_t left = size_ - taken_;
  if (num_bytes > left || has + num_bytes > 2 * (left - num_bytes)) return false;
  by_owner_[owner] = has + num_bytes;
  taken_ += num_bytes;
  return true;
}

void SharedRoom::Return(uint64_t owner, uint64_t num_bytes) {
  const auto found = by_owner_.find(owner);
  if (found == by_owner_.end()) return;
  found->second -= num_bytes;
  taken_ -= num_bytes;
  if (found->second == 0) by_owner_.erase(found);
}

}  // namespace dsv4::server
