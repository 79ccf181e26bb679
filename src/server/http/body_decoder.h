// Bodies of requests that come compressed (Content-Encoding, RFC 9110 section 8.4.1; zstd: RFC 9659).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dsv4::server {

// Not thread-safe.
class BodyDecoder {
 public:
  // Decode appends at most so many bytes, however much a few bytes may stand for.
  static constexpr size_t kMostAtOnce = size_t{256} << 10;
  static constexpr std::string_view kCodings = "gzip, deflate or zstd";

  // For one coding, in any case of letters; null for none ("" and "identity"). InvalidArgument: another, or
  // several.
  static Result<std::unique_ptr<BodyDecoder>> Make(std::string_view content_encoding);
  virtual ~BodyDecoder() = default;

  // Moves `bytes` on and appends what they stand for. InvalidArgument: they are not of this coding. Again as
  // long as bytes are left or kMostAtOnce bytes were appended.
  virtual Status Decode(std::string_view& bytes, std::string& out) = 0;
  // Whether the body may end here.
  virtual bool whole() const = 0;
};

}  // namespace dsv4::server
