// TrustedProxies: networks, and the search for the first address outside of them.
#include "server/http/trusted_proxies.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace dsv4::server {
namespace {

constexpr std::string_view kUnix = "unix";

// Some proxies add the port: "1.2.3.4:5", "[::1]:5".
std::string_view WithoutPort(std::string_view text) {
  if (text.starts_with('[')) return text.substr(1, std::min(text.find(']'), text.size()) - 1);
  return std::count(text.begin(), text.end(), ':') == 1 ? text.substr(0, text.find(':')) : text;
}

}  // namespace

bool TrustedProxies::Read(std::string_view text, Address* address) {
  const std::string name(text);
  in_addr v4;
  if (::inet_pton(AF_INET6, name.c_str(), address->data()) == 1) return true;
  if (::inet_pton(AF_INET, name.c_str(), &v4) != 1) return false;
  address->fill(0);
  (*address)[10] = (*address)[11] = 0xFF;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&v4);
  std::copy(bytes, bytes + 4, address->begin() + 12);
  return true;
}

bool TrustedProxies::ReadNetwork(const std::string& name, Network* network) {
  const size_t slash = std::min(name.find('/'), name.size());
  if (!Read(name.substr(0, slash), &network->address)) return false;
  const bool is_v4 = name.find(':') == std::string::npos;
  const int most = is_v4 ? 32 : 128;
  network->bits = most;
  if (slash < name.size()) {
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + slash + 1, end, network->bits);
    if (error != std::errc() || rest != end || network->bits < 0 || network->bits > most) return false;
  }
  if (is_v4) network->bits += 96;
  return true;
}

Status TrustedProxies::Check(const std::string& name) {
  Network ignored = {};
  if (name == kUnix || ReadNetwork(name, &ignored)) return {};
  return InvalidArgument(
      fmt::format("got '{}', wanted an address, a network such as 10.0.0.0/8, or unix", name));
}

TrustedProxies::TrustedProxies(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    Network network = {};
    if (name == kUnix)
      trusts_unix_ = true;
    else if (ReadNetwork(name, &network))
      networks_.push_back(network);
  }
}

bool TrustedProxies::Trusts(std::string_view text) const {
  if (text.empty()) return trusts_unix_;
  Address address = {};
  if (!Read(text, &address)) return false;
  return std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
    for (int bit = 0; bit < network.bits; ++bit) {
      const auto byte = static_cast<size_t>(bit / 8);
      if ((((address[byte] ^ network.address[byte]) >> (7 - bit % 8)) & 1) != 0) return false;
    }
    return true;
  });
}

std::string TrustedProxies::ClientOf(const std::string& peer, std::string_view forwarded_for) const {
  std::string client = peer;
  while (!forwarded_for.empty() && Trusts(client)) {
    const size_t comma = forwarded_for.rfind(',');
    const size_t begin = comma == std::string_view::npos ? 0 : comma + 1;
    const std::string_view last = WithoutPort(Trim(forwarded_for.substr(begin), " \t"));
    Address ignored = {};
    if (!Read(last, &ignored)) break;
    client = std::string(last);
    forwarded_for = forwarded_for.substr(0, begin == 0 ? 0 : begin - 1);
  }
  return client;
}

}  // namespace dsv4::server
