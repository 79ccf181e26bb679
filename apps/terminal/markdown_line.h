// Kind of a line of Markdown, by itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4::apps {

// Without blanks, tabs and line ends around it.
std::string_view Trimmed(std::string_view text);

// Three or more of one of "-*_", with blanks between them, and nothing else.
bool IsRule(std::string_view text);

// The cells of a table's row, trimmed. "\|" and bars in code stand in a cell.
std::vector<std::string> TableCells(std::string_view row);

// "|---|:-:|": the row under a table's heads.
bool IsDelimiterRow(std::string_view row);

}  // namespace dsv4::apps
