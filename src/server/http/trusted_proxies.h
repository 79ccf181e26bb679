// TrustedProxies: peers whose X-Forwarded-For names the client. A part of the HTTP server.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::server {

class TrustedProxies {
 public:
  // Whether it is a network ("10.0.0.0/8", "::1") or "unix", the server's own socket. InvalidArgument says
  // what was got.
  static Status Check(const std::string& name);
  // Names that Check takes.
  explicit TrustedProxies(const std::vector<std::string>& names);

  // The client's address: the peer's, or behind trusted ones the last in the list that is not trusted. Words
  // that are no address end the search.
  std::string ClientOf(const std::string& peer, std::string_view forwarded_for) const;

 private:
  using Address = std::array<uint8_t, 16>;  // For IPv4 the mapped one.
  struct Network {
    Address address;
    int bits;
  };
  static bool Read(std::string_view text, Address* address);
  static bool ReadNetwork(const std::string& name, Network* network);
  // An empty address is the unix socket.
  bool Trusts(std::string_view address) const;

  std::vector<Network> networks_;
  bool trusts_unix_ = false;
};

}  // namespace dsv4::server
