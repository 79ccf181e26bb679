// HTML page of a report: verdicts, tables and figures of all checks.
#include "diag/report/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "diag/report/html_figure.h"
#include "diag/report/html_style.h"
#include "diag/report/html_text.h"
#include "diag/report/svg_plot.h"

namespace dsv4::diag {
namespace {

// Longer tables are folded.
constexpr size_t kOpenRows = 16;

std::string_view VerdictClass(Verdict verdict) {
  return verdict == Verdict::kNotApplicable ? "none" : VerdictName(verdict);
}

// A sign and the word: colour alone says nothing to many readers.
std::string Badge(Verdict verdict) {
  const char* sign = verdict == Verdict::kPass ? "✓" : verdict == Verdict::kFinding ? "✗" : "–";
  return fmt::format("<span class=\"badge {}\"><span aria-hidden=\"true\">{}</span> {}</span>",
                     VerdictClass(verdict), sign, VerdictName(verdict));
}

std::string List(const std::vector<std::string>& lines) {
  std::string html = "<ul>\n";
  for (const std::string& line : lines) html += fmt::format("<li>{}</li>\n", EscapeHtml(line));
  return html + "</ul>\n";
}

std::string TableHtml(const Table& table) {
  std::string html = fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"group\" "
      "aria-label=\"{}\"><table>\n<caption>{}</caption>\n",
      EscapeHtml(table.title), EscapeHtml(table.title));
  html += TableRow(table.columns, "th");
  for (const auto& row : table.rows) html += TableRow(row, "td");
  html += "</table></div>\n";
  if (table.rows.size() <= kOpenRows) return html;
  return fmt::format("<details><summary>{} ({})</summary>\n{}</details>\n", EscapeHtml(table.title),
                     Counted(table.rows.size(), "row"), html);
}

std::string Section(const CheckReport& report, bool judged) {
  const std::string name = EscapeHtml(report.check);
  std::string html =
      fmt::format("<section id=\"{}\" class=\"{}\">\n<h2>{} {}</h2>\n<p class=\"headline\">{}</p>\n", name,
                  judged ? VerdictClass(report.verdict) : "none", name, judged ? Badge(report.verdict) : "",
                  EscapeHtml(report.headline));
  if (report.location)
    html += fmt::format("<p><b>Where:</b> {}</p>\n", EscapeHtml(report.location->ToString()));
  if (!report.rules_out.empty()) html += "<p><b>Rules out:</b></p>\n" + List(report.rules_out);
  if (!report.next_step.empty())
    html += fmt::format("<p><b>Next:</b> {}</p>\n", EscapeHtml(report.next_step));
  if (!report.evidence.empty()) html += "<h3>Evidence</h3>\n" + List(report.evidence);
  if (!report.plots.empty() || !report.key_maps.empty()) {
    html += "<div class=\"figures\">\n";
    for (size_t i = 0; i < report.plots.size(); ++i)
      html += PlotFigure(report.plots[i], fmt::format("{}-plot-{}", name, i));
    for (size_t i = 0; i < report.key_maps.size(); ++i)
      html += KeyMapFigure(report.key_maps[i], fmt::format("{}-keys-{}", name, i));
    html += "</div>\n";
  }
  for (const Table& table : report.tables) html += TableHtml(table);
  return html + "</section>\n";
}

std::string Summary(const PageHead& head, const std::vector<CheckReport>& reports) {
  const auto count = [&](Verdict verdict) {
    return std::count_if(reports.begin(), reports.end(),
                         [&](const auto& report) { return report.verdict == verdict; });
  };
  const int64_t findings = count(Verdict::kFinding);
  if (!head.result.empty()) {
    return fmt::format("<p class=\"verdict {}\">{}{}</p>\n",
                       findings > 0   ? "finding"
                       : head.bounded ? "pass"
                                      : "none",
                       EscapeHtml(head.result),
                       findings > 0   ? ": not within the bounds"
                       : head.bounded ? ": within the bounds"
                                      : "");
  }
  std::string verdict = findings == 0 ? "Nothing found" : Counted(findings, "finding");
  verdict += fmt::format(", {} passed", count(Verdict::kPass));
  if (const int64_t none = count(Verdict::kNotApplicable); none > 0)
    verdict += fmt::format(", {} not applicable", none);
  std::string html = fmt::format("<p class=\"verdict {}\">{}</p>\n",
                                 VerdictClass(findings > 0 ? Verdict::kFinding : Verdict::kPass), verdict);
  html +=
      "<nav aria-label=\"Checks\"><div class=\"scroll\" tabindex=\"0\" role=\"group\" "
      "aria-label=\"Verdicts\">"
      "<table class=\"summary\">\n<tr><th>check</th><th>verdict</th><th>what was found</th>"
      "<th>rules out</th><th>next</th></tr>\n";
  for (const CheckReport& report : reports) {
    std::string rules_out;
    for (const std::string& line : report.rules_out) rules_out += (rules_out.empty() ? "" : "; ") + line;
    html += fmt::format(
        "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td>{2}</td>"
        "<td data-name=\"rules out\">{3}</td><td data-name=\"next\">{4}</td></tr>\n",
        EscapeHtml(report.check), Badge(report.verdict), EscapeHtml(report.headline), EscapeHtml(rules_out),
        EscapeHtml(report.next_step));
  }
  html += "</table></div></nav>\n";
  if (head.stopped && !reports.empty()) {
    html += fmt::format("<p>Stopped: the checks after {} would mean nothing.</p>\n",
                        EscapeHtml(reports.back().check));
  }
  return html;
}

}  // namespace

std::string ToHtml(const PageHead& head, const std::vector<CheckReport>& reports) {
  // The policy makes the browser itself refuse scripts and requests, should a text ever get past the
  // escaping.
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light "
      "dark\">\n<title>{0}</title>\n<style>\n{1}</style>\n</head>\n<body>\n"
      "<header>\n<h1>{0}</h1>\n",
      EscapeHtml(head.title), kHtmlStyle);
  html += Summary(head, reports) + "<dl>\n";
  for (const auto& [name, value] : head.facts)
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", EscapeHtml(name), EscapeHtml(value));
  html += "</dl>\n</header>\n<main>\n";
  for (const CheckReport& report : reports) html += Section(report, head.result.empty() || head.bounded);
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace dsv4::diag
