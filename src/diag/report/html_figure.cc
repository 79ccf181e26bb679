// HTML frame of a figure, with its heading, legend and table.
#include "diag/report/html_figure.h"

#include <fmt/format.h>

#include "diag/report/html_text.h"

namespace dsv4::diag {

std::string HtmlFigure(const FigureParts& parts) {
  const std::string title = EscapeHtml(parts.title);
  return fmt::format(
      "<figure class=\"{}\">\n<h3>{}</h3>\n"
      "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{}\">\n{}</div>\n"
      "{}<figcaption>{}</figcaption>\n"
      "<details><summary>The figures as a table</summary>\n"
      "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Figures: "
      "{}\"><table>\n{}</table></div>\n"
      "</details>\n</figure>\n",
      parts.wide ? "wide" : "narrow", title, title, parts.svg, parts.legend, EscapeHtml(parts.reading), title,
      parts.rows);
}

std::string TableRow(const std::vector<std::string>& cells, std::string_view tag) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) html += fmt::format("<{}>{}</{}>", tag, EscapeHtml(cell), tag);
  return html + "</tr>\n";
}

}  // namespace dsv4::diag
