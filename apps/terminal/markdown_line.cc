// Kind of one Markdown line: rule, table row, delimiter row.
#include "apps/terminal/markdown_line.h"

#include <cctype>

#include "base/text.h"

namespace dsv4::apps {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n'; }

size_t RunLength(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && text[end] == text[at]) ++end;
  return end - at;
}

std::string_view Trimmed(std::string_view text) { return Trim(text, " \t\n"); }

bool IsRule(std::string_view text) {
  if (text.empty() || std::string_view("-*_").find(text.front()) == std::string_view::npos) return false;
  size_t count = 0;
  for (const char c : text) {
    if (!IsSpace(c) && c != text.front()) return false;
    count += c == text.front() ? 1 : 0;
  }
  return count >= 3;
}

namespace {

// Behind the formula that begins at `at`; `at`: none does. A sum of money is none.
size_t FormulaEnd(std::string_view row, size_t at) {
  constexpr size_t kNone = std::string_view::npos;
  if (row.substr(at).starts_with("\\(")) {
    const size_t close = row.find("\\)", at);
    return close == kNone ? at : close + 2;
  }
  const size_t close = row[at] == '$' ? row.find('$', at + 1) : kNone;
  if (close == kNone || close == at + 1 || IsSpace(row[at + 1]) || IsSpace(row[close - 1])) return at;
  const bool goes_on =
      close + 1 < row.size() && std::isalnum(static_cast<unsigned char>(row[close + 1])) != 0;
  return goes_on ? at : close + 1;
}

}  // namespace

std::vector<std::string> TableCells(std::string_view row, bool formulas) {
  row = Trimmed(row);
  if (row.starts_with('|')) row.remove_prefix(1);
  if (row.ends_with('|') && !row.ends_with("\\|")) row.remove_suffix(1);
  std::vector<std::string> cells(1);
  bool code = false;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == '`') code = !code;
    for (const size_t end = formulas && !code ? FormulaEnd(row, i) : i; i < end; ++i) {
      if (!row.substr(i).starts_with("\\|")) cells.back() += row[i];
    }
    if (i == row.size()) break;
    if (row[i] == '\\' && i + 1 < row.size() && row[i + 1] == '|') {
      cells.back() += row[++i];
    } else if (row[i] == '|' && !code) {
      cells.emplace_back();
    } else {
      cells.back() += row[i];
    }
  }
  for (std::string& cell : cells) cell = std::string(Trimmed(cell));
  return cells;
}

bool IsDelimiterRow(std::string_view row) {
  return row.find('-') != std::string_view::npos && row.find_first_not_of("|-: \t") == std::string_view::npos;
}

}  // namespace dsv4::apps
