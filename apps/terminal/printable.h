// Text from files and users, made safe for a terminal or a shell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4::apps {

// `text` with control characters (new lines and tabs excepted) and bytes that are not UTF-8 written as \xNN.
// A tensor's name may hold escape sequences that would drive the terminal.
std::string Printable(std::string_view text);

// `text` in single quotes of a shell.
std::string InQuotes(std::string_view text);
// The same where a shell would read something else without them.
std::string ShellWord(std::string_view text);
// The arguments as they would be typed into a shell, the program by its name alone: its path stays private.
std::string CommandLine(const std::vector<std::string>& words);

}  // namespace dsv4::apps
