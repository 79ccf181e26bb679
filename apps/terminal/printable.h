// Text from files and users, made safe to print on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace dsv4::apps {

// `text` with control characters (new lines and tabs excepted) and bytes that are not UTF-8 written as \xNN.
// A tensor's name may hold escape sequences that would drive the terminal.
std::string Printable(std::string_view text);

}  // namespace dsv4::apps
