// The chat page at /: one document without outside assets, written in page.html.
#pragma once

#include <string_view>

namespace dsv4::server {

std::string_view ChatPage();

}  // namespace dsv4::server
