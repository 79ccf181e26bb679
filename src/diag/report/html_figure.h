// The frame that every drawing of a page has, and its measures.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4::diag {

// In SVG units: about CSS pixels where a plot has its natural width, a phone's.
inline constexpr double kNarrow = 400;
inline constexpr double kWide = 860;
inline constexpr double kHeight = 250;
inline constexpr double kLeft = 50;
inline constexpr double kRight = 12;
inline constexpr double kTop = 28;
inline constexpr double kBottom = 42;
inline constexpr double kCharacter = 6.6;  // Width of one, about.

// `svg`, `legend` (may be empty) and `rows` are HTML; the others texts.
struct FigureParts {
  std::string_view title;
  std::string_view reading;
  std::string svg;
  std::string legend;
  std::string rows;  // Rows of the table: every number of the drawing.
  bool wide = false;
};
std::string HtmlFigure(const FigureParts& parts);

// One row of a table; `tag` is "th" or "td". Escapes the cells.
std::string TableRow(const std::vector<std::string>& cells, std::string_view tag);

}  // namespace dsv4::diag
