// Small parts of texts: counts in messages ("1 token", "3 tokens"), case, blanks, and percent-encoding of URIs (RFC 3986, 2.1).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4 {

// The count and its noun in singular or plural: Counted(2, "entry") is "2 entries". What does not follow English rules, or has a verb, says
// its plural: Counted(n, "row is", "rows are").
std::string Counted(int64_t count, std::string_view one, std::string_view many = {});

// ASCII letters in lower case; all else stays.
std::string Lowercase(std::string_view text);

// Text without these characters at its ends.
std::string_view Trim(std::string_view text, std::string_view blanks);

// Each "%XX" as its byte; what is no such escape stays.
std::string PercentDecoded(std::string_view text);

}  // namespace dsv4
