// Reader of log-probability lines in three layouts, and writer of ours.
#include "apps/eval/logprob_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/text.h"

namespace dsv4::apps {
namespace {

int64_t CountWords(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  int64_t words = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool space = kSpace.find(text[i]) != std::string_view::npos;
    if (space && (i == 0 || kSpace.find(text[i - 1]) == std::string_view::npos)) ++words;
  }
  return words;
}

const Json* Find(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

// `logprobs` of a line, or of the one choice of a response in it.
const Json* FindLogprobs(const Json& line) {
  const Json* choices = Find(line, "choices");
  if (choices != nullptr && choices->is_array() && !choices->empty()) return Find((*choices)[0], "logprobs");
  return Find(line, "logprobs");
}

double Rounded(double value) { return std::round(value * 1e6) / 1e6; }

}  // namespace

Result<ScoredText> TextReader::Read(const DataLine& line) {
  ScoredText text;
  const bool bos = options_.bos == "on";
  if (const Json* tokens = Find(line.json, "tokens") != nullptr ? Find(line.json, "tokens")
                                                                : Find(line.json, "prompt_token_ids")) {
    if (!tokens->is_array()) return Error(BadMember(line, "tokens", "a list of ids"));
    for (const Json& token : *tokens) {
      if (!token.is_number_integer() || token < 0 || token >= model_.vocab_size())
        return Error(BadMember(line, "tokens", fmt::format("ids of 0..{}", model_.vocab_size() - 1)));
      text.tokens.push_back(token);
    }
    const Json* first = Find(line.json, "first");
    if (first != nullptr && (!first->is_number_unsigned() || *first < 1 || *first > text.tokens.size()))
      return Error(BadMember(line, "first", fmt::format("a position of 1 to {}", text.tokens.size())));
    text.first = first == nullptr ? 1 : first->get<size_t>();
  } else if (const Json* messages = Find(line.json, "messages")) {
    DSV4_ASSIGN_OR_RETURN(text.tokens,
                          model_.EncodeMessages(messages->dump(), options_.thinking_mode, options_.effort));
    text.first = text.tokens.size();
    if (Find(line.json, "completion") != nullptr) {
      DSV4_ASSIGN_OR_RETURN(const std::string completion, TextOf(line, "completion"));
      DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, model_.Encode(completion, false));
      text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
    }
  } else if (Find(line.json, "text") != nullptr) {
    DSV4_ASSIGN_OR_RETURN(const std::string content, TextOf(line, "text"));
    DSV4_ASSIGN_OR_RETURN(text.tokens, model_.Encode(content, bos));
    text.num_bytes = static_cast<int64_t>(content.size());
    text.num_words = CountWords(content);
  } else if (Find(line.json, "prompt") != nullptr) {
    DSV4_ASSIGN_OR_RETURN(const std::string prompt, TextOf(line, "prompt"));
    DSV4_ASSIGN_OR_RETURN(text.tokens, model_.Encode(prompt, bos));
    text.first = std::max<size_t>(1, text.tokens.size());
    if (Find(line.json, "completion") != nullptr) {
      DSV4_ASSIGN_OR_RETURN(const std::string completion, TextOf(line, "completion"));
      DSV4_ASSIGN_OR_RETURN(text.tokens, model_.Encode(prompt + completion, bos));
      text.num_bytes = static_cast<int64_t>(completion.size());
      text.num_words = CountWords(completion);
    }
  } else {
    return Error(
        InvalidArgument(fmt::format("{}: wanted one of text, prompt, messages or tokens", line.label)));
  }
  DSV4_TRY(ReadOther(line, text));
  if (text.tokens.size() <= text.first) {
    return Error(InvalidArgument(fmt::format("{}: {}, none of which has one in front of it to be scored by",
                                             line.label, Counted(text.tokens.size(), "token"))));
  }
  if (text.num_bytes == 0) {
    for (size_t i = text.first; i < text.tokens.size(); ++i)
      text.num_bytes += static_cast<int64_t>(model_.tokenizer().TokenBytes(text.tokens[i]).size());
  }
  return text;
}

Status TextReader::ReadOther(const DataLine& line, ScoredText& text) {
  const auto number = [](const Json& value) {
    return value.is_number() ? std::optional<double>(value.get<double>()) : std::nullopt;
  };
  if (const Json* list = Find(line.json, "prompt_logprobs")) {  // vLLM's.
    if (!list->is_array() || list->size() != text.tokens.size())
      return BadMember(line, "prompt_logprobs", fmt::format("a list of {}, one a token", text.tokens.size()));
    text.other.resize(text.tokens.size());
    for (size_t i = 0; i < list->size(); ++i) {
      if (!(*list)[i].is_object()) continue;
      for (const auto& [name, value] : (*list)[i].items()) {
        int32_t id = -1;
        std::from_chars(name.data(), name.data() + name.size(), id);
        const std::optional<double> logprob =
            number(value.is_object() ? value.value("logprob", Json()) : value);
        if (id < 0 || id >= model_.vocab_size() || !logprob)
          return BadMember(line, "prompt_logprobs", "ids with a logprob each");
        text.other[i].top.emplace_back(id, *logprob);
        if (id == text.tokens[i]) text.other[i].logprob = logprob;
      }
    }
    return {};
  }
  const Json* logprobs = FindLogprobs(line.json);
  if (logprobs == nullptr) return {};
  if (logprobs->is_array()) {  // Our own.
    const Json* top = Find(line.json, "top");
    if (logprobs->size() != text.tokens.size() || (top != nullptr && top->size() != text.tokens.size()))
      return BadMember(line, "logprobs", fmt::format("lists of {}, one a token", text.tokens.size()));
    text.other.resize(text.tokens.size());
    for (size_t i = 0; i < logprobs->size(); ++i) {
      text.other[i].logprob = number((*logprobs)[i]);
      if (top == nullptr || !(*top)[i].is_array()) continue;
      for (const Json& pair : (*top)[i]) {
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() || !pair[1].is_number() ||
            pair[0] < 0 || pair[0] >= model_.vocab_size())
          return BadMember(line, "top", "lists of pairs of id and log-probability");
        text.other[i].top.emplace_back(pair[0], pair[1]);
      }
    }
    return {};
  }
  // Chat completions: what was answered, behind the prompt.
  std::vector<int32_t> ids;
  std::vector<OtherToken> found;
  for (const char* key : {"reasoning_content", "content"}) {
    const Json* list = Find(*logprobs, key);
    if (list == nullptr) continue;
    if (!list->is_array()) return BadMember(line, "logprobs", "lists of tokens");
    const bool closes = key == std::string_view("content") && !ids.empty();
    const auto think_end = model_.tokenizer().FindToken("</think>");
    if (closes && think_end && ids.back() != *think_end) {  // It stands between them, and is in neither list.
      ids.push_back(*think_end);
      found.emplace_back();
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<OtherToken> part, ReadNamed(line, *list, ids));
    found.insert(found.end(), part.begin(), part.end());
  }
  if (ids.empty()) return BadMember(line, "logprobs", "a list, or an object with content");
  if (text.tokens.size() > text.first)
    return BadMember(line, "completion", "none beside logprobs that name the answer's tokens");
  text.other.resize(text.first);
  text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
  text.other.insert(text.other.end(), found.begin(), found.end());
  return {};
}

Result<std::vector<OtherToken>> TextReader::ReadNamed(const DataLine& line, const Json& list,
                                                      std::vector<int32_t>& ids) {
  std::vector<OtherToken> found;
  for (const Json& item : list) {
    const Json* logprob = Find(item, "logprob");
    if (logprob == nullptr || !logprob->is_number())
      return Error(BadMember(line, "logprobs", "a logprob for each token"));
    DSV4_ASSIGN_OR_RETURN(const int32_t id, IdOf(line, item));
    ids.push_back(id);
    OtherToken token = {.logprob = logprob->get<double>()};
    if (const Json* top = Find(item, "top_logprobs"); top != nullptr && top->is_array()) {
      for (const Json& candidate : *top) {
        const Json* its = Find(candidate, "logprob");
        if (its == nullptr || !its->is_number())
          return Error(BadMember(line, "logprobs", "a logprob for each candidate"));
        DSV4_ASSIGN_OR_RETURN(const int32_t other, IdOf(line, candidate));
        // -9999 is the hosted API's way to say that it says nothing.
        if (its->get<double>() > -1000) token.top.emplace_back(other, its->get<double>());
      }
    }
    found.push_back(std::move(token));
  }
  return found;
}

Result<int32_t> TextReader::IdOf(const DataLine& line, const Json& item) {
  if (ids_.empty()) {
    const tokenizer::Tokenizer& tokenizer = model_.tokenizer();
    for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.num_ids()); ++id) {
      if (!tokenizer.IsDefined(id)) continue;
      const auto bytes = tokenizer.TokenBytes(id);
      ids_.try_emplace(std::string(bytes.begin(), bytes.end()), id);
    }
  }
  std::string text;
  if (const Json* bytes = Find(item, "bytes"); bytes != nullptr && bytes->is_array()) {
    for (const Json& byte : *bytes) {
      if (!byte.is_number_unsigned() || byte > 255)
        return Error(BadMember(line, "logprobs", "bytes of 0 to 255"));
      text.push_back(static_cast<char>(byte.get<uint8_t>()));
    }
  } else if (const Json* token = Find(item, "token"); token != nullptr && token->is_string()) {
    text = token->get<std::string>();
  }
  const auto found = ids_.find(text);
  if (found == ids_.end())
    return Error(InvalidArgument(fmt::format("{}: the tokenizer has no token \"{}\"", line.label, text)));
  return found->second;
}

Json LogprobLine(const ScoredText& text, const std::vector<OtherToken>& found) {
  Json logprobs = Json::array();
  Json top = Json::array();
  for (size_t i = 0; i < text.tokens.size(); ++i) {
    logprobs.push_back(found[i].logprob ? Json(Rounded(*found[i].logprob)) : Json(nullptr));
    Json candidates = Json::array();
    for (const auto& [id, logprob] : found[i].top) candidates.push_back({id, Rounded(logprob)});
    top.push_back(candidates.empty() ? Json(nullptr) : std::move(candidates));
  }
  return {{"tokens", text.tokens},
          {"first", text.first},
          {"logprobs", std::move(logprobs)},
          {"top", std::move(top)}};
}

double CandidateKl(const OtherToken& other, std::span<const float> logits, double log_sum) {
  double kl = 0;
  double rest = 1;
  double own_rest = 1;
  for (const auto& [id, logprob] : other.top) {
    const double own = logits[static_cast<size_t>(id)] - log_sum;
    kl += std::exp(logprob) * (logprob - own);
    rest -= std::exp(logprob);
    own_rest -= std::exp(own);
  }
  // Rounded log-probabilities may sum to a little more than one.
  constexpr double kLeast = 1e-9;
  if (rest > kLeast) kl += rest * std::log(rest / std::max(own_rest, kLeast));
  return std::max(kl, 0.0);
}

}  // namespace dsv4::apps
