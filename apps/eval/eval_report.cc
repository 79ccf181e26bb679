// Figures of a task as text, JSON and page, and bounds that decide the exit code.
#include "apps/eval/eval_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "diag/report/html_report.h"
#include "io/output_file.h"

namespace dsv4::apps {
namespace {

diag::CheckReport AsCheck(const EvalReport& report) {
  diag::CheckReport check;
  check.check = report.task;
  check.verdict = report.failures.empty() ? diag::Verdict::kPass : diag::Verdict::kFinding;
  for (const auto& [name, count] : report.counts) {
    check.headline += fmt::format("{}{} {}", check.headline.empty() ? "" : ", ", count, name);
  }
  check.evidence = report.failures;
  check.evidence.insert(check.evidence.end(), report.notes.begin(), report.notes.end());
  diag::Table figures = {.title = "Figures", .columns = {"", "value", "95 % from", "to"}, .rows = {}};
  for (const EvalReport::Figure& figure : report.figures) {
    const Interval& interval = figure.interval;
    const auto number = [&](double value) { return fmt::format("{:.{}f}", value, figure.digits); };
    const bool has_interval = interval.low == interval.low;
    figures.rows.push_back({figure.name, number(interval.value), has_interval ? number(interval.low) : "",
                            has_interval ? number(interval.high) : ""});
  }
  check.tables = {std::move(figures)};
  check.tables.insert(check.tables.end(), report.tables.begin(), report.tables.end());
  check.plots = report.plots;
  return check;
}

std::string ToText(const EvalReport& report) {
  std::string text;
  for (const auto& [name, count] : report.counts) text += fmt::format("{:<28} {}\n", name, count);
  for (const EvalReport::Figure& figure : report.figures)
    text += fmt::format("{:<28} {}\n", figure.name, ToText(figure.interval, figure.digits));
  for (const diag::Table& table : report.tables) {
    text += fmt::format("\n{}\n", table.title);
    std::vector<size_t> widths;
    for (const std::string& column : table.columns) widths.push_back(column.size());
    for (const auto& row : table.rows) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    const auto line = [&](const std::vector<std::string>& cells) {
      for (size_t i = 0; i < cells.size(); ++i) text += fmt::format("{:<{}}  ", cells[i], widths[i]);
      text += '\n';
    };
    line(table.columns);
    for (const auto& row : table.rows) line(row);
  }
  for (const std::string& note : report.notes) text += note + "\n";
  for (const std::string& failure : report.failures) text += "not kept: " + failure + "\n";
  return text;
}

Json ToJson(const EvalReport& report, const EvalOptions& options, const std::string& model_name) {
  Json json = {{"task", report.task},
               {"model", model_name},
               {"backend", options.model.backend},
               {"numerics", options.model.numerics},
               {"data", options.data_path}};
  for (const auto& [name, count] : report.counts) json[name] = count;
  for (const EvalReport::Figure& figure : report.figures) json[figure.name] = ToJson(figure.interval);
  for (const auto& [name, value] : report.details.items()) json[name] = value;
  json["notes"] = report.notes;
  json["not_kept"] = report.failures;
  return json;
}

Status WriteFiles(const EvalOptions& options, const EvalReport& report, const std::string& model_name) {
  if (!options.output_path.empty()) {
    std::string text;
    for (const Json& line : report.lines) text += JsonText(line) + "\n";
    DSV4_RETURN_IF_ERROR(io::WriteTextFile(options.output_path, text).WithContext("--output"));
  }
  if (options.html_path.empty()) return {};
  diag::PageHead head{.title = fmt::format("dsv4 eval {}", report.task)};
  if (report.figures.empty()) {
    head.result = AsCheck(report).headline;
  } else {
    const EvalReport::Figure& first = report.figures.front();
    head.result = fmt::format("{} {}", first.name, ToText(first.interval, first.digits));
  }
  head.bounded = report.bounded;
  head.facts = {{"command", options.command_line},
                {"model", model_name},
                {"backend", options.model.backend},
                {"numerics", options.model.numerics},
                {"data", options.data_path},
                {"made", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC, dsv4 {}", fmt::gmtime(std::time(nullptr)),
                                     options.version)}};
  return io::WriteTextFile(options.html_path, diag::ToHtml(head, {AsCheck(report)})).WithContext("--html");
}

}  // namespace

void EvalReport::Require(const std::string& name, double value, double bound, bool at_most) {
  bounded = true;
  // A value that is no number is beyond every bound.
  const bool kept = at_most ? value <= bound : value >= bound;
  if (!kept)
    failures.push_back(
        fmt::format("{} is {:.6g}, wanted {} {:.6g}", name, value, at_most ? "at most" : "at least", bound));
}

int Finish(const EvalOptions& options, const EvalReport& report, const std::string& model_name) {
  if (options.json) {
    fmt::print("{}\n", JsonText(ToJson(report, options, model_name), 2));
  } else {
    fmt::print("{}", ToText(report));
  }
  if (const Status written = WriteFiles(options, report, model_name); !written.ok())
    return Fail(written, kExitRunFailed);
  return report.failures.empty() ? kExitOk : kExitRunFailed;
}

}  // namespace dsv4::apps
