#include "apps/bench_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsv4::apps {
namespace {

// Ops with less of a profile's time share a line.
constexpr double kSmallShare = 0.003;

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// "-" where there is nothing to compare with.
std::string PercentText(double percent) { return percent > 0 ? fmt::format("{:.1f} %", percent) : "-"; }

double ReadPercent(const BenchRow& row, const BenchMachine& machine) {
  return Percent(row.cost.bytes() / row.Median(), machine.read_bandwidth);
}

double MultiplyAddPercent(const BenchRow& row, const BenchMachine& machine) {
  return Percent(row.cost.multiply_adds / row.Median(), machine.multiply_adds);
}

// The least time that the cost allows on this machine; 0: unknown.
double BoundSeconds(const diag::OpCost& cost, const BenchMachine& machine) {
  if (machine.read_bandwidth == 0) return 0;
  return std::max(cost.bytes() / machine.read_bandwidth, cost.multiply_adds / machine.multiply_adds);
}

const BenchRow* Find(const BenchReport& report, bool prefill, int64_t depth, int64_t batch, int64_t tokens) {
  const auto found = std::ranges::find_if(report.rows, [&](const BenchRow& row) {
    return row.prefill == prefill && row.depth == depth && row.batch == batch && row.tokens == tokens;
  });
  return found == report.rows.end() ? nullptr : &*found;
}

}  // namespace

std::vector<BenchSummary> Summarize(const BenchReport& report) {
  std::vector<BenchSummary> summary;
  const BenchMachine& machine = report.machine;
  const bool bounded = machine.read_bandwidth > 0;
  for (const BenchRow& row : report.rows) {
    if (row.prefill && bounded) {
      summary.push_back({fmt::format("prefill {}, multiply-adds", row.tokens),
                         MultiplyAddPercent(row, machine), "% of the peak"});
    }
  }
  for (const BenchRow& row : report.rows) {
    if (row.prefill) continue;
    if (row.batch == 1 && bounded) {
      summary.push_back({fmt::format("decode, depth {}, batch 1, reads", row.depth),
                         ReadPercent(row, machine), "% of the bandwidth"});
    }
    const BenchRow* alone = Find(report, false, row.depth, 1, 1);
    if (alone != nullptr && row.batch > 1) {
      summary.push_back({fmt::format("depth {}, batch {} against batch 1", row.depth, row.batch),
                         row.TokensPerSecond() / alone->TokensPerSecond(), "x the tokens"});
    }
    const BenchRow* shallow = Find(report, false, 0, row.batch, 1);
    if (shallow != nullptr && row.depth > 0) {
      summary.push_back({fmt::format("batch {}, depth {} against depth 0", row.batch, row.depth),
                         row.Median() / shallow->Median(), "x the time"});
    }
  }
  return summary;
}

std::string HeaderText(const BenchReport& report) {
  std::string text =
      fmt::format("model    {}, {} layers\nbackend  {}, {} threads, numerics {}\n", report.model,
                  report.num_layers, report.backend, report.num_threads, report.numerics);
  if (report.machine.read_bandwidth > 0) {
    text += fmt::format("machine  reads {:.1f} GB/s, {:.1f} G multiply-adds/s, measured here\n",
                        report.machine.read_bandwidth / 1e9, report.machine.multiply_adds / 1e9);
  } else {
    text +=
        "machine  not measured: the bounds known here are the host's, and this backend computes elsewhere\n";
  }
  const BenchCheck& check = report.check;
  if (!check.done) {
    text += "output   UNCHECKED (--check off)\n";
  } else {
    text += fmt::format(
        "output   checked against the reference in {} layers ({:.0f} s): every op of a prefill of {}; logits "
        "at depth {}: "
        "worst cosine {:.6f}, worst error {:.1e} of their size\n",
        check.layers, check.seconds, check.prefill_tokens, check.depth, check.worst_cosine,
        check.worst_error);
  }
  return text;
}

std::string RowHeading() {
  return fmt::format("{:<8} {:>6} {:>5} {:>6} {:>11} {:>7} {:>9} {:>9} {:>9} {:>7} {:>9} {:>7}\n", "",
                     "depth", "batch", "tokens", "time", "spread", "tokens/s", "weights", "cache", "reads",
                     "G mul-add", "peak");
}

std::string RowText(const BenchRow& row, const BenchMachine& machine) {
  return fmt::format(
      "{:<8} {:>6} {:>5} {:>6} {:>8.2f} ms {:>5.1f} % {:>9.2f} {:>6.0f} MB {:>6.1f} MB {:>7} {:>9.2f} "
      "{:>7}\n",
      row.prefill ? "prefill" : "decode", row.depth, row.batch, row.tokens, row.Median() * 1e3,
      100 * row.Spread(), row.TokensPerSecond(), row.cost.weight_bytes / 1e6, row.cost.cache_bytes / 1e6,
      PercentText(ReadPercent(row, machine)), row.cost.multiply_adds / 1e9,
      PercentText(MultiplyAddPercent(row, machine)));
}

std::string ProfileText(const BenchRow& row, const BenchMachine& machine) {
  std::vector<diag::OpTime> ops = row.ops;
  std::ranges::sort(ops, [](const diag::OpTime& a, const diag::OpTime& b) { return a.seconds > b.seconds; });
  const auto steps = static_cast<double>(row.profiled_steps);
  double total = 0;
  for (const diag::OpTime& op : ops) total += op.seconds;
  std::string text = fmt::format("    {:<18} {:<36} {:>6} {:>11} {:>7} {:>9} {:>9} {:>9}\n", "op", "",
                                 "calls", "time", "share", "reads", "G mul-add", "of bound");
  const auto add = [&](const diag::OpTime& op) {
    text += fmt::format("    {:<18} {:<36} {:>6.0f} {:>8.3f} ms {:>5.1f} % {:>6.1f} MB {:>9.3f} {:>9}\n",
                        op.op, op.detail, static_cast<double>(op.calls) / steps, op.seconds / steps * 1e3,
                        Percent(op.seconds, total), op.cost.bytes() / steps / 1e6,
                        op.cost.multiply_adds / steps / 1e9,
                        PercentText(Percent(BoundSeconds(op.cost, machine), op.seconds)));
  };
  diag::OpTime rest = {.op = "others"};
  int64_t num_small = 0;
  for (const diag::OpTime& op : ops) {
    if (op.seconds >= kSmallShare * total) {
      add(op);
      continue;
    }
    rest.calls += op.calls;
    rest.seconds += op.seconds;
    rest.cost += op.cost;
    ++num_small;
  }
  if (num_small > 0) {
    rest.detail = fmt::format("{} below {:g} % each", num_small, 100 * kSmallShare);
    add(rest);
  }
  text += fmt::format("    {:<18} {:<36} {:>6} {:>8.3f} ms, {:.1f} % of the median step\n", "all ops", "", "",
                      total / steps * 1e3, Percent(total / steps, row.Median()));
  return text;
}

std::string FooterText(const BenchReport& report) {
  std::string text;
  for (const BenchSummary& line : Summarize(report)) {
    text += fmt::format("{:<44} {:>7.2f} {}\n", line.what, line.value, line.unit);
  }
  const BenchMemory& memory = report.memory;
  text += fmt::format(
      "memory   peak {:.1f} MB = {:.3f} x the weights' {:.1f} MB with the largest row's {:.1f} MB of cache\n",
      static_cast<double>(memory.peak_bytes) / 1e6,
      static_cast<double>(memory.peak_bytes - memory.states_bytes) /
          static_cast<double>(memory.weights_bytes),
      static_cast<double>(memory.weights_bytes) / 1e6, static_cast<double>(memory.states_bytes) / 1e6);
  return text;
}

Json ToJson(const BenchReport& report) {
  Json json = {{"model", report.model},
               {"layers", report.num_layers},
               {"backend", report.backend},
               {"threads", report.num_threads},
               {"numerics", report.numerics}};
  json["machine"] = {{"read_bytes_per_second", report.machine.read_bandwidth},
                     {"multiply_adds_per_second", report.machine.multiply_adds}};
  const BenchCheck& check = report.check;
  if (check.done) {
    json["check"] = {{"layers", check.layers},
                     {"prefill_tokens", check.prefill_tokens},
                     {"depth", check.depth},
                     {"worst_cosine", check.worst_cosine},
                     {"worst_error", check.worst_error},
                     {"seconds", check.seconds}};
  } else {
    json["check"] = "UNCHECKED";
  }
  json["rows"] = Json::array();
  for (const BenchRow& row : report.rows) {
    Json out = {{"kind", row.prefill ? "prefill" : "decode"},
                {"depth", row.depth},
                {"batch", row.batch},
                {"tokens", row.tokens},
                {"seconds", row.seconds},
                {"median_seconds", row.Median()},
                {"spread", row.Spread()},
                {"tokens_per_second", row.TokensPerSecond()},
                {"weight_bytes", row.cost.weight_bytes},
                {"cache_bytes", row.cost.cache_bytes},
                {"read_percent", ReadPercent(row, report.machine)},
                {"multiply_adds", row.cost.multiply_adds},
                {"multiply_add_percent", MultiplyAddPercent(row, report.machine)}};
    if (!row.ops.empty()) {
      const auto steps = static_cast<double>(row.profiled_steps);
      out["ops"] = Json::array();
      for (const diag::OpTime& op : row.ops) {
        out["ops"].push_back({{"op", op.op},
                              {"detail", op.detail},
                              {"calls", static_cast<double>(op.calls) / steps},
                              {"seconds", op.seconds / steps},
                              {"weight_bytes", op.cost.weight_bytes / steps},
                              {"cache_bytes", op.cost.cache_bytes / steps},
                              {"multiply_adds", op.cost.multiply_adds / steps},
                              {"bound_seconds", BoundSeconds(op.cost, report.machine) / steps}});
      }
    }
    json["rows"].push_back(std::move(out));
  }
  json["summary"] = Json::array();
  for (const BenchSummary& line : Summarize(report)) {
    json["summary"].push_back({{"what", line.what}, {"value", line.value}, {"unit", line.unit}});
  }
  json["memory"] = {{"peak_bytes", report.memory.peak_bytes},
                    {"weights_bytes", report.memory.weights_bytes},
                    {"states_bytes", report.memory.states_bytes}};
  return json;
}

}  // namespace dsv4::apps
