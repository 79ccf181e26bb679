// Text, JSON and exit code of check reports, and the summary of a run of checks.
#include "diag/report/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/text.h"

namespace dsv4::diag {
namespace {

// Characters, which is what a terminal's column holds of nearly all scripts here.
size_t Length(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool IsNumber(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789+-.einfa") == std::string::npos;
}

// Numbers to the right, texts to the left.
std::string TableText(const Table& table) {
  std::vector<std::string> lines(table.rows.size() + 1, "   ");
  for (size_t column = 0; column < table.columns.size(); ++column) {
    size_t width = Length(table.columns[column]);
    bool numbers = true;
    for (const auto& row : table.rows) {
      width = std::max(width, Length(row[column]));
      numbers = numbers && IsNumber(row[column]);
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string& cell = i == 0 ? table.columns[column] : table.rows[i - 1][column];
      const std::string padding(width - Length(cell), ' ');
      lines[i] += numbers ? " " + padding + cell : " " + cell + padding;
    }
  }
  std::string text = fmt::format("  {}\n", table.title);
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Json ReportJson(const CheckReport& report) {
  Json json;
  json["check"] = report.check;
  json["verdict"] = VerdictName(report.verdict);
  json["headline"] = report.headline;
  if (report.location) {
    json["place"] = {{"layer", report.location->layer},
                     {"tensor", report.location->tensor},
                     {"op", report.location->op},
                     {"position", report.location->position}};
    if (!report.location->experts.empty()) json["place"]["experts"] = report.location->experts;
  }
  json["evidence"] = report.evidence;
  json["tables"] = Json::array();
  for (const Table& table : report.tables) {
    json["tables"].push_back({{"title", table.title}, {"columns", table.columns}, {"rows", table.rows}});
  }
  json["rules_out"] = report.rules_out;
  json["next_step"] = report.next_step;
  json["ends_run"] = report.ends_run;
  return json;
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFinding:
      return "finding";
    case Verdict::kNotApplicable:
      return "not applicable";
  }
  return "";
}

std::string Location::ToString() const {
  std::string text = layer < 0 ? tensor : fmt::format("layer {}, {}", layer, tensor);
  if (!op.empty()) text += fmt::format(" (op {})", op);
  text += fmt::format(", position {}", position);
  if (experts.empty()) return text;
  return text + fmt::format(", {} {}", experts.size() == 1 ? "expert" : "experts", fmt::join(experts, ", "));
}

CheckReport NotApplicable(CheckReport report, std::string why) {
  report.verdict = Verdict::kNotApplicable;
  report.headline = std::move(why);
  return report;
}

std::string ToText(const CheckReport& report) {
  std::string text = fmt::format("{}: {}: {}\n", report.check, VerdictName(report.verdict), report.headline);
  if (report.location) text += fmt::format("  where: {}\n", report.location->ToString());
  for (const std::string& line : report.evidence) text += fmt::format("  {}\n", line);
  for (const Table& table : report.tables) text += TableText(table);
  for (const std::string& line : report.rules_out) text += fmt::format("  rules out: {}\n", line);
  if (!report.next_step.empty()) text += fmt::format("  next: {}\n", report.next_step);
  return text;
}

std::string Summary(const std::vector<CheckReport>& reports) {
  std::vector<std::string_view> found;
  std::vector<std::string_view> silent;
  const CheckReport* first = nullptr;
  for (const CheckReport& report : reports) {
    if (report.verdict == Verdict::kNotApplicable) silent.push_back(report.check);
    if (report.verdict != Verdict::kFinding) continue;
    found.push_back(report.check);
    if (first == nullptr) first = &report;
  }
  const size_t passed = reports.size() - found.size() - silent.size();
  std::string counts = Counted(static_cast<int64_t>(passed), "check") + " passed";
  if (!silent.empty())
    counts += fmt::format(", {} not applicable ({})", silent.size(), fmt::join(silent, ", "));
  if (first == nullptr) return fmt::format("nothing found: {}", counts);
  std::string line = fmt::format("found by {}", fmt::join(found, ", "));
  if (first->location) line += fmt::format(", first at {}", first->location->ToString());
  line += fmt::format("; {}", counts);
  if (reports.back().ends_run && reports.back().verdict == Verdict::kFinding)
    line += "; the checks behind it say nothing then";
  if (!first->next_step.empty()) line += fmt::format("; next: {}", first->next_step);
  return line;
}

std::string ToJson(const std::vector<CheckReport>& reports) {
  Json checks = Json::array();
  for (const CheckReport& report : reports) checks.push_back(ReportJson(report));
  return JsonText(Json{{"checks", std::move(checks)}}, 2);
}

int ExitCode(const std::vector<CheckReport>& reports) {
  const auto found = [](const CheckReport& report) { return report.verdict == Verdict::kFinding; };
  return std::any_of(reports.begin(), reports.end(), found) ? 1 : 0;
}

}  // namespace dsv4::diag
