// The chat page: page.html at /, what it loads at /page/DIGEST/NAME. All of it is part of the binary.
#pragma once

#include <optional>
#include <string_view>

namespace dsv4::server {

struct PageFile {
  std::string_view type;   // "text/css; charset=utf-8"
  std::string_view bytes;  // As stored.
  bool gzip = false;       // Whether that is gzip's format.
};

std::optional<PageFile> FindPageFile(std::string_view name);

// Changes with every byte of the page and its libraries.
std::string_view PageDigest();

}  // namespace dsv4::server
