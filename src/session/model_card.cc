// Reader of a model's card: its limit of generation and its notice.
#include "session/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/json.h"
#include "base/read_file.h"

namespace dsv4::session {
namespace {

constexpr std::string_view kNoticeKey = "dsv4_notice:";
constexpr size_t kLongestNotice = 300;
// Letters in words of one token, of all letters: below, a text has unknown words. English on the tokenizer of models/tiny has 0.27 and more.
constexpr double kLeastKnown = 0.2;
constexpr int kFewWords = 3;

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\"'");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\"'") + 1 - begin);
}

std::string Notice(std::string_view card) {
  if (!card.starts_with("---\n")) return {};
  card.remove_prefix(4);
  while (!card.empty() && !card.starts_with("---")) {
    const std::string_view line = card.substr(0, card.find('\n'));
    if (line.starts_with(kNoticeKey))
      return std::string(Trimmed(line.substr(kNoticeKey.size())).substr(0, kLongestNotice));
    card.remove_prefix(std::min(line.size() + 1, card.size()));
  }
  return {};
}

bool IsLetter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

Result<ModelCard> ModelCard::Read(const std::string& directory) {
  ModelCard card;
  const std::string path = directory + "/generation_config.json";
  const Result<std::string> config = ReadFile(path, FileKind::kRegular, kMaxModelDocumentBytes);
  if (!config && config.error().code() != StatusCode::kNotFound) return Error(config.error());
  if (config) {
    DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(*config, path));
    const Json limit = json.is_object() ? json.value("max_new_tokens", Json()) : Json();
    if (!limit.is_null()) {
      if (!limit.is_number_integer() || limit < 1) {
        return Error(InvalidArgument(
            fmt::format("{}: max_new_tokens: got {}, wanted a whole number from 1 on", path, limit.dump())));
      }
      card.max_new_tokens = limit.get<int64_t>();
    }
  }
  // Words for people only: a card that cannot be read changes no answer.
  if (const Result<std::string> text =
          ReadFile(directory + "/README.md", FileKind::kRegular, kMaxModelDocumentBytes))
    card.notice = Notice(*text);
  return card;
}

AnswerDefaults ModelCard::Limit(AnswerDefaults defaults) const {
  if (!max_new_tokens) return defaults;
  const AnswerDefaults built_in;
  for (const auto length : {&AnswerDefaults::max_tokens_chat, &AnswerDefaults::max_tokens_thinking,
                            &AnswerDefaults::max_tokens_max_effort}) {
    if (defaults.*length == built_in.*length) defaults.*length = std::min(defaults.*length, *max_new_tokens);
  }
  return defaults;
}

bool HasUnknownWords(const tokenizer::Tokenizer& tokenizer, std::string_view text) {
  constexpr size_t kRead = 2000;
  if (text.size() > kRead) {
    size_t end = kRead;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  const Result<std::vector<tokenizer::TokenId>> ids = tokenizer.Encode(text);
  if (!ids) return false;
  std::vector<bool> begins(text.size() + 1);  // First bytes of tokens.
  size_t at = 0;
  for (const tokenizer::TokenId id : *ids) {
    begins[std::min(at, text.size())] = true;
    at += tokenizer.TokenBytes(id).size();
  }
  int64_t words = 0;
  int64_t letters = 0;
  int64_t known = 0;
  int64_t beyond_ascii = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    bool whole = true;
    while (end < text.size() && IsLetter(text[end])) {
      whole = whole && (end == begin || !begins[end]);
      beyond_ascii += static_cast<unsigned char>(text[end]) >= 0x80 ? 1 : 0;
      ++end;
    }
    const auto length = static_cast<int64_t>(end - begin);
    words += length > 0 ? 1 : 0;
    letters += length;
    known += whole ? length : 0;
    begin = end + 1;
  }
  if (letters == 0 || (words < kFewWords && 2 * beyond_ascii < letters)) return false;
  return static_cast<double>(known) < kLeastKnown * static_cast<double>(letters);
}

}  // namespace dsv4::session
