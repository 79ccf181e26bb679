// Names that cannot be guessed: tool call ids lead back to remembered text.
#pragma once

#include <string>
#include <string_view>

namespace dsv4::server {

// `prefix` and 24 hexadecimal digits from the system's random source.
std::string RandomId(std::string_view prefix);
// The same behind the time, so that ids of one prefix sort as they were made: 32 hexadecimal digits.
std::string TimedId(std::string_view prefix);
// The same for a call of an answer, with its number in front: DeepSeek's own encoder sorts calls and results
// by id.
std::string NumberedCallId(std::string_view prefix, size_t index);
// A seed for a request that brings none.
unsigned long RandomSeed();

}  // namespace dsv4::server
