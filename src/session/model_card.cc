// Reader of a model's card, and its judgement of a text's words.
#include "session/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"

namespace dsv4::session {
namespace {

constexpr const char* kCardKey = "dsv4_card";
constexpr size_t kLongestText = 300;
constexpr size_t kMostExamples = 6;
constexpr size_t kBytesRead = 2000;
// Letters in words of one token, of all letters: below, the words are not those of the tokenizer. English prose has more.
constexpr double kLeastKnown = 0.6;
// Words of the card's list, of all words. English prose has one in three.
constexpr int64_t kWordsForACommonOne = 12;
constexpr int64_t kFewWords = 3;
// Letters of a token: below, they follow each other as in no language of the tokenizer.
constexpr double kLettersOfAToken = 1.3;
constexpr int64_t kFewLetters = 4;

bool IsBeyondAscii(char c) { return static_cast<unsigned char>(c) >= 0x80; }
bool IsLetter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || IsBeyondAscii(c); }
bool IsLower(char c) { return c >= 'a' && c <= 'z'; }

// A text of the card.
Result<std::string> TextOf(const Json& json, const std::string& name, size_t longest) {
  if (json.is_string()) {
    const auto text = json.get<std::string>();
    const bool is_plain =
        std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (!text.empty() && text.size() <= longest && is_plain) return text;
  }
  return Error(InvalidArgument(fmt::format("{}: got {}, wanted a text of one line and 1 to {}", name,
                                           json.dump().substr(0, 80), Counted(longest, "byte"))));
}

Status ReadCard(const Json& json, const std::string& name, ModelCard& card) {
  if (!json.is_object())
    return InvalidArgument(fmt::format("{}: got {}, wanted an object", name, json.dump()));
  for (const auto& [key, value] : json.items()) {
    const std::string member = fmt::format("{}.{}", name, key);
    if (key == "notice") {
      DSV4_ASSIGN_OR_RETURN_STATUS(card.notice, TextOf(value, member, kLongestText));
    } else if (key == "words") {
      DSV4_ASSIGN_OR_RETURN_STATUS(const std::string words, TextOf(value, member, size_t{64} << 10));
      for (size_t begin = 0; begin < words.size();) {
        const size_t end = std::min(words.find(' ', begin), words.size());
        if (end > begin) card.words.insert(Lowercase(std::string_view(words).substr(begin, end - begin)));
        begin = end + 1;
      }
    } else if (key == "examples") {
      if (!value.is_array() || value.size() > kMostExamples)
        return InvalidArgument(fmt::format("{}: wanted a list of at most {}", member, kMostExamples));
      for (const Json& each : value) {
        const Json& example = each.is_object() && each.size() == 2 ? each : Json::object();
        ModelCard::Example read;
        DSV4_ASSIGN_OR_RETURN_STATUS(read.title,
                                     TextOf(example.value("title", Json()), member + ".title", kLongestText));
        DSV4_ASSIGN_OR_RETURN_STATUS(read.ask,
                                     TextOf(example.value("ask", Json()), member + ".ask", kLongestText));
        card.examples.push_back(std::move(read));
      }
    } else {
      return InvalidArgument(fmt::format("{}: no such member, wanted notice, words or examples", member));
    }
  }
  if (card.notice.empty() != card.words.empty())
    return InvalidArgument(fmt::format("{}: wanted notice and words, or none of them", name));
  return {};
}

// A message's own text, without results of calls.
std::string TextOf(const chat::Message& message) {
  const chat::Content& content = message.content;
  std::string text = content.text;
  for (const chat::ContentPart& part : content.parts) text += part.text + "\n";
  if (content.kind != chat::Content::Kind::kAbsent || !message.content_blocks) return text;
  for (const chat::UserBlock& block : *message.content_blocks) {
    if (block.type == "text") text += block.content.text + "\n";
  }
  return text;
}

}  // namespace

Result<ModelCard> ModelCard::Read(const std::string& directory) {
  ModelCard card;
  const std::string path = directory + "/generation_config.json";
  const Result<std::string> config = ReadFile(path, FileKind::kRegular, kMaxModelDocumentBytes);
  if (!config && config.error().code() == StatusCode::kNotFound) return card;
  if (!config) return Error(config.error());
  DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(*config, path));
  if (!json.is_object()) return card;
  const Json limit = json.value("max_new_tokens", Json());
  if (!limit.is_null()) {
    if (!limit.is_number_unsigned() || limit < 1 || limit > std::numeric_limits<int64_t>::max()) {
      return Error(InvalidArgument(
          fmt::format("{}: max_new_tokens: got {}, wanted a whole number from 1 on", path, limit.dump())));
    }
    card.max_new_tokens = limit.get<int64_t>();
  }
  if (json.contains(kCardKey))
    DSV4_TRY(ReadCard(json[kCardKey], fmt::format("{}: {}", path, kCardKey), card));
  return card;
}

std::string ModelCard::NoticeOn(const tokenizer::Tokenizer& tokenizer,
                                std::span<const chat::Message> messages) const {
  if (notice.empty()) return {};
  const auto last = std::find_if(messages.rbegin(), messages.rend(), [](const chat::Message& message) {
    return message.role != chat::Role::kLatestReminder;
  });
  if (last == messages.rend() || last->role != chat::Role::kUser) return {};
  return IsBeyond(tokenizer, TextOf(*last)) ? notice : std::string();
}

bool ModelCard::IsBeyond(const tokenizer::Tokenizer& tokenizer, std::string_view text) const {
  // A question stands behind what is attached to it.
  if (text.size() > kBytesRead) text.remove_prefix(text.size() - kBytesRead);
  while (!text.empty() && (static_cast<unsigned char>(text.front()) & 0xc0) == 0x80) text.remove_prefix(1);
  const Result<std::vector<tokenizer::TokenId>> ids = tokenizer.Encode(text);
  if (!ids) return false;
  std::vector<bool> begins(text.size() + 1);  // First bytes of tokens.
  size_t at = 0;
  for (const tokenizer::TokenId id : *ids) {
    begins[std::min(at, text.size())] = true;
    at += tokenizer.TokenBytes(id).size();
  }
  int64_t num_words = 0;
  int64_t num_common = 0;
  int64_t letters = 0;
  int64_t known = 0;
  int64_t tokens = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    bool whole = true;
    while (end < text.size() && IsLetter(text[end])) {
      const bool is_first = end == begin;
      whole = whole && (is_first || !begins[end]);
      tokens += is_first || begins[end] ? 1 : 0;
      ++end;
    }
    if (end > begin) {
      const auto length = static_cast<int64_t>(end - begin);
      ++num_words;
      letters += length;
      known += whole ? length : 0;
      num_common += words.contains(Lowercase(text.substr(begin, end - begin))) ? 1 : 0;
    }
    begin = end + 1;
  }
  if (letters == 0) return false;
  if (2 * std::ranges::count_if(text, IsBeyondAscii) >= letters) return true;
  if (num_common > 0 && num_common * kWordsForACommonOne >= num_words) return false;
  if (num_words < kFewWords) {
    return letters >= kFewLetters && std::ranges::any_of(text, IsLower) &&
           static_cast<double>(letters) < kLettersOfAToken * static_cast<double>(tokens);
  }
  return static_cast<double>(known) < kLeastKnown * static_cast<double>(letters);
}

}  // namespace dsv4::session
