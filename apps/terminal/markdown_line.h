// Kind of a line of Markdown, by itself.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::apps {

bool IsSpace(char c);

// How often the byte at `at` stands there in a row.
size_t RunLength(std::string_view text, size_t at);

// Without blanks, tabs and line ends around it.
std::string_view Trimmed(std::string_view text);

// Three or more of one of "-*_", with blanks between them, and nothing else.
bool IsRule(std::string_view text);

// The cells of a table's row, trimmed. "\|" and bars in code stand in a cell;
// with `formulas`, those in formulas do too.
std::vector<std::string> TableCells(std::string_view row, bool formulas = false);

// "|---|:-:|": the row under a table's heads.
bool IsDelimiterRow(std::string_view row);

}  // namespace dsv4::apps
