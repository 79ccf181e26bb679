// Check `stop-set`: ids that end a turn, their origin, and a log that went past one.
#include "apps/diagnose/diagnose_stop_set.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"

namespace dsv4::apps {
namespace {

using tokenizer::StopSet;
using tokenizer::TokenId;

constexpr const char* kGenerationConfig = "generation_config.json";

// The end tokens of generation_config.json; empty without the file or the key.
Result<std::vector<int64_t>> GenerationEosIds(const std::string& directory) {
  const std::string path = fmt::format("{}/{}", directory, kGenerationConfig);
  const Result<std::string> text = ReadFile(path, FileKind::kRegular, kMaxModelDocumentBytes);
  if (!text && text.error().code() == StatusCode::kNotFound) return std::vector<int64_t>();
  if (!text) return Error(text.error());
  DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(*text, path));
  std::vector<int64_t> ids;
  if (!json.is_object() || !json.contains("eos_token_id")) return ids;
  const Json& value = json["eos_token_id"];
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (!id.is_number_integer()) {
      return Error(InvalidArgument(
          fmt::format("{}: eos_token_id: got {}, wanted an id or a list of ids", path, value.dump())));
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

struct Sources {
  std::vector<int64_t> config;
  std::vector<int64_t> generation;
};

std::string OriginOf(const StopSet::Entry& entry, const TextSubject& subject, const Sources& sources) {
  std::string origin = entry.id == subject.special->end_of_sentence
                           ? "end of sentence, by its string in tokenizer.json"
                           : "next user turn, by its string in tokenizer.json (defensive)";
  const auto names = [&](const std::vector<int64_t>& ids) {
    return std::find(ids.begin(), ids.end(), entry.id) != ids.end();
  };
  if (names(sources.config)) origin += "; eos_token_id of config.json";
  if (names(sources.generation)) origin += fmt::format("; eos_token_id of {}", kGenerationConfig);
  return origin;
}

// The answer's part of a log.
std::vector<TokenId> AnswerOf(const std::vector<TokenId>& log, const std::vector<TokenId>& prompt) {
  const bool has_prompt =
      log.size() >= prompt.size() && std::equal(prompt.begin(), prompt.end(), log.begin());
  return {log.begin() + (has_prompt ? static_cast<int64_t>(prompt.size()) : 0), log.end()};
}

// Fault in a log; empty when every turn end was heeded.
std::string LogComplaint(const TextSubject& subject, const StopSet& set, const std::vector<TokenId>& answer) {
  for (size_t i = 0; i + 1 < answer.size(); ++i) {
    if (!set.Contains(answer[i])) continue;
    return fmt::format("token {} of the answer is {} {}, a turn end, and {} more follow", i, answer[i],
                       ShowToken(subject.tokenizer, answer[i]), answer.size() - i - 1);
  }
  const std::string text = subject.tokenizer.Decode(answer);
  for (const StopSet::Entry& entry : set.entries()) {
    const bool as_token = std::find(answer.begin(), answer.end(), entry.id) != answer.end();
    if (!as_token && text.find(entry.text) != std::string::npos) {
      return fmt::format(
          "the answer spells {} in ordinary tokens: no id can end the turn there; was the prompt's marker "
          "split as well?",
          entry.text);
    }
  }
  return {};
}

}  // namespace

Result<diag::CheckReport> CheckStopSet(const TextSubject& subject, const std::string& log,
                                       const std::string& what) {
  diag::CheckReport report{.check = "stop-set"};
  const StopSet set = StopSet::ForChat(*subject.special);
  DSV4_ASSIGN_OR_RETURN(const std::vector<int64_t> generation, GenerationEosIds(subject.directory));
  const Sources sources = {subject.config.eos_token_ids, generation};

  diag::Table table{.title = "ids that end a turn", .columns = {"id", "text", "origin"}};
  for (const StopSet::Entry& entry : set.entries()) {
    table.rows.push_back({std::to_string(entry.id), ShowToken(subject.tokenizer, entry.id),
                          OriginOf(entry, subject, sources)});
  }
  report.tables.push_back(std::move(table));

  std::vector<std::string> complaints;
  const auto compare = [&](const std::vector<int64_t>& ids, const char* file) {
    for (const int64_t id : ids) {
      const bool in_range = id >= 0 && id < tokenizer::kMaxNumTokenIds;
      if (in_range && set.Contains(static_cast<TokenId>(id))) continue;
      complaints.push_back(fmt::format("{} names {} {} as end token; the tokenizer's end of sentence is {}",
                                       file, id,
                                       in_range ? ShowToken(subject.tokenizer, static_cast<TokenId>(id)) : "",
                                       subject.special->end_of_sentence));
    }
  };
  compare(sources.config, "config.json");
  compare(sources.generation, kGenerationConfig);
  if (!log.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::optional<std::vector<TokenId>> ids, ReadIdList(log, what));
    if (!ids) return Error(InvalidArgument(fmt::format("{}: a token log wanted: ids, not text", what)));
    if (ids->empty()) return Error(InvalidArgument(fmt::format("{}: no token ids", what)));
    const std::vector<TokenId> answer = AnswerOf(*ids, subject.ids);
    report.evidence.push_back(
        fmt::format("{}: {}, {} of them the answer", what, Counted(ids->size(), "id"), answer.size()));
    if (std::string text = LogComplaint(subject, set, answer); !text.empty())
      complaints.push_back(std::move(text));
  }
  if (complaints.empty()) {
    report.headline = fmt::format("{} a turn{}", Counted(set.entries().size(), "id ends", "ids end"),
                                  log.empty() ? "" : "; the log went past none of them");
    report.rules_out = {log.empty() ? "an end token that the files name and the engine ignores"
                                    : "a missed turn end"};
    report.next_step =
        log.empty() ? "give the ids of an answer that did not stop with --log FILE" : "dsv4 diagnose sampler";
  } else {
    report.verdict = diag::Verdict::kFinding;
    report.headline = complaints.front();
    report.evidence.insert(report.evidence.end(), complaints.begin(), complaints.end());
    report.next_step = "stop on every id of the table, not on eos_token_id alone";
  }
  return report;
}

}  // namespace dsv4::apps
