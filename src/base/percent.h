// Percent-encoding of URIs (RFC 3986, 2.1).
#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

// Each "%XX" as its byte; what is no such escape stays.
std::string PercentDecoded(std::string_view text);

}  // namespace dsv4
