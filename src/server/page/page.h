// The chat page: page.html at /, what it loads at /page/NAME. All of it is written in the folder page/ and is part of the binary.
#pragma once

#include <optional>
#include <string_view>

namespace dsv4::server {

struct PageFile {
  std::string_view type;  // "text/css; charset=utf-8"
  std::string_view text;
};

std::optional<PageFile> FindPageFile(std::string_view name);

}  // namespace dsv4::server
