// Check `ngram`: rows of n-gram tables that the graph has read, against the formula and the file.
#include "diag/checks/ngram_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "formats/number_formats.h"
#include "model/engram/engram_hash.h"

namespace dsv4::diag {
namespace {

constexpr std::string_view kRows = "engram.rows";

// The rows of one token by the formula. h is c_0 m_0 at first, and for each n from 2 on h ^= c_(n-1) m_(n-1). A row is h mod prime, behind
// the primes in front.
std::vector<int64_t> RowsOf(const model::EngramHash& hash, int table, std::span<const int32_t> classes,
                            size_t token) {
  const std::span<const int64_t> primes = hash.primes(table);
  const std::span<const int64_t> multipliers = hash.multipliers(table);
  const size_t heads = primes.size() / (multipliers.size() - 1);
  const auto term = [&](size_t back) {
    const int32_t own = back <= token ? classes[token - back] : hash.pad_class();
    return int64_t{own} * multipliers[back];
  };
  std::vector<int64_t> rows;
  int64_t number = term(0);
  int64_t offset = 0;
  for (size_t back = 1; back < multipliers.size(); ++back) {
    number ^= term(back);
    for (size_t head = 0; head < heads; ++head) {
      const int64_t prime = primes[rows.size()];
      rows.push_back(number % prime + offset);
      offset += prime;
    }
  }
  return rows;
}

struct LayerResult {
  int64_t num_read = 0;
  std::set<int64_t> rows;
  int64_t num_zero = 0;  // Among `rows`.
};

struct Mismatch {
  Location location;
  std::string text;
};

// The first row of the recording that is not the table's.
std::optional<Mismatch> Compare(const RecordedTensor& got, const Weight& table, int layer,
                                std::span<const std::vector<int64_t>> wanted, std::string_view cut) {
  std::vector<float> row(static_cast<size_t>(table.cols));
  for (size_t token = 0; token < wanted.size(); ++token) {
    for (size_t i = 0; i < wanted[token].size(); ++i) {
      DequantizeRow(table, wanted[token][i], row.data());
      // Rows in 4 bits are rounded once more, to what the model computes with.
      if (got.dtype == DType::kBF16)
        std::ranges::transform(row, row.begin(), [](float x) { return FloatFromBf16(Bf16FromFloat(x)); });
      const auto values = got.Row(static_cast<int64_t>(token)).subspan(i * row.size(), row.size());
      if (std::ranges::equal(values, row)) continue;
      return Mismatch{
          Location{layer, std::string(kRows), "", static_cast<int64_t>(token)},
          fmt::format("{}: row {} of the token's {} is not row {} of layers.{}.engram.embed, which the "
                      "formula gives",
                      cut, i, wanted[token].size(), wanted[token][i], layer)};
    }
  }
  return std::nullopt;
}

}  // namespace

Result<CheckReport> CheckNgramRows(const Subject& subject, std::span<const int32_t> tokens,
                                   const model::ModelWeights& weights) {
  CheckReport report{.check = "ngram"};
  const model::ModelConfig& config = subject.model.config();
  if (!config.engram.has_value()) return NotApplicable(std::move(report), "the model has no n-gram tables");
  const std::vector<int32_t>& classes_of_ids = subject.model.options().token_classes;
  const int32_t num_classes = *std::ranges::max_element(classes_of_ids) + 1;
  DSV4_ASSIGN_OR_RETURN(const model::EngramHash hash,
                        model::EngramHash::Create(*config.engram, classes_of_ids, num_classes));
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> classes, hash.Classes(tokens));
  const auto filter = [](int, std::string_view name) { return name == kRows; };
  DSV4_ASSIGN_OR_RETURN(const Recording one_pass,
                        Record(subject, tokens, {}, model::LogitsRows::kAll, filter));
  const int64_t one = 1;
  DSV4_ASSIGN_OR_RETURN(const Recording one_by_one,
                        Record(subject, tokens, {&one, 1}, model::LogitsRows::kAll, filter));
  Table table{.title = "rows of n-gram tables",
              .columns = {"layer", "rows of the table", "rows read", "distinct", "of them zero"}};
  std::vector<Mismatch> mismatches;
  std::vector<std::string> empty_tables;
  for (const model::LayerPlan& plan : subject.model.layers()) {
    if (!plan.has_engram()) continue;
    const Weight& rows = weights.layers[static_cast<size_t>(plan.number)].engram->table;
    std::vector<std::vector<int64_t>> wanted;
    LayerResult result;
    for (size_t token = 0; token < tokens.size(); ++token) {
      wanted.push_back(RowsOf(hash, plan.engram, classes, token));
      result.num_read += std::ssize(wanted.back());
      result.rows.insert(wanted.back().begin(), wanted.back().end());
    }
    std::vector<float> row(static_cast<size_t>(rows.cols));
    for (const int64_t number : result.rows) {
      DequantizeRow(rows, number, row.data());
      result.num_zero += std::ranges::all_of(row, [](float value) { return value == 0; }) ? 1 : 0;
    }
    for (const auto& [recording, cut] :
         {std::pair{&one_pass, "in one pass"}, std::pair{&one_by_one, "token by token"}}) {
      const RecordedTensor* got = recording->Find(plan.number, kRows);
      if (got == nullptr || got->num_rows != std::ssize(tokens))
        return Error(Internal(fmt::format("ngram: layer {} has read no rows {}", plan.number, cut)));
      if (auto mismatch = Compare(*got, rows, plan.number, wanted, cut)) mismatches.push_back(*mismatch);
    }
    if (2 * result.num_zero > std::ssize(result.rows)) {
      empty_tables.push_back(fmt::format("layers.{}.engram.embed: {} of the {} that were read are zero",
                                         plan.number, result.num_zero, Counted(result.rows.size(), "row")));
    }
    table.rows.push_back({std::to_string(plan.number), std::to_string(hash.num_table_rows(plan.engram)),
                          std::to_string(result.num_read), std::to_string(result.rows.size()),
                          std::to_string(result.num_zero)});
  }
  report.evidence.push_back(
      fmt::format("{} of {}, in one pass and token by token", Counted(tokens.size(), "token"),
                  Counted(std::set<int32_t>(classes.begin(), classes.end()).size(), "class")));
  report.tables.push_back(std::move(table));
  for (const Mismatch& mismatch : mismatches) report.evidence.push_back(mismatch.text);
  report.evidence.insert(report.evidence.end(), empty_tables.begin(), empty_tables.end());
  if (mismatches.empty() && empty_tables.empty()) {
    report.headline = "every token has the rows of its n-grams, in one pass and one by one";
    report.rules_out = {"rows of other n-grams, a history that is lost between chunks, tables out of place"};
    report.next_step =
        "classes come from tokenizer.json: dsv4 diagnose files says whether it is the release's";
    return report;
  }
  report.verdict = Verdict::kFinding;
  if (!mismatches.empty()) {
    report.location = mismatches.front().location;
    report.headline = mismatches.front().text;
    report.next_step = "the history of a sequence (kv/class_history.h), then the table's name in the file";
  } else {
    report.headline = empty_tables.front();
    report.next_step =
        "check the file against its source (size, hash): were the table's shards ever written?";
  }
  return report;
}

}  // namespace dsv4::diag
