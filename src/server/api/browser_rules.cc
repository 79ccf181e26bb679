// Rules for the fields Host, Origin and Sec-Fetch-Site.
#include "server/api/browser_rules.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace dsv4::server {
namespace {

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char left, unsigned char right) {
    return std::tolower(left) == std::tolower(right);
  });
}

// Without the port, and without the dot of a full name.
std::string_view NameIn(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    const std::string_view behind = end == std::string_view::npos ? host : host.substr(end + 1);
    return behind.empty() || behind.starts_with(':') ? host.substr(0, host.size() - behind.size()) : host;
  }
  if (host.find(':') != host.rfind(':')) return host;  // An address of IPv6 wants brackets.
  host = host.substr(0, host.find(':'));
  if (host.ends_with('.')) host.remove_suffix(1);
  return host;
}

bool IsAddress(std::string_view name) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  if (name.size() > 2 && name.starts_with('[') && name.ends_with(']'))
    return ::inet_pton(AF_INET6, std::string(name.substr(1, name.size() - 2)).c_str(), address.data()) == 1;
  return ::inet_pton(AF_INET, std::string(name).c_str(), address.data()) == 1;
}

}  // namespace

bool IsAllowedHost(std::string_view host, std::span<const std::string> names) {
  const std::string_view name = NameIn(host);
  // A user, an escape or a port that is no number would hide another name.
  const size_t port = std::min(host.rfind(':'), host.size());
  const bool is_plain = host.find_first_of("@%") == std::string_view::npos;
  const bool has_port =
      host.ends_with(']') ||
      host.substr(std::min(port + 1, host.size())).find_first_not_of("0123456789") == std::string_view::npos;
  if (!is_plain || !has_port) return false;
  if (name.find('.') == std::string_view::npos && !name.starts_with('[')) return true;
  return IsAddress(name) || std::ranges::any_of(names, [&](const std::string& one) {
           return one == "*" || EqualsIgnoringCase(NameIn(one), name);
         });
}

bool IsAllowedOrigin(const HttpRequest& request, std::string_view allowed) {
  const std::string_view origin = request.Header("origin");
  if (allowed == "*") return true;
  if (origin.empty()) {
    const bool looks = request.method == "GET" || request.method == "HEAD";
    return looks || request.Header("sec-fetch-site") != "cross-site";
  }
  if (origin == allowed) return true;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme)) return origin.substr(scheme.size()) == request.Header("host");
  }
  return false;
}

std::string MachineName() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

}  // namespace dsv4::server
