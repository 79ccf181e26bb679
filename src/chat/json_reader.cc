// Reader of JSON text to JsonValue, which keeps spelling, key order and integers of any size.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"
#include "chat/json_value.h"

namespace dsv4::chat {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// A repeated key keeps its first position and takes the last value.
void MergeRepeatedKeys(std::vector<JsonValue::Member>& members) {
  std::unordered_map<std::string_view, size_t> position;
  bool repeated = false;
  for (size_t i = 0; i < members.size() && !repeated; ++i)
    repeated = !position.emplace(members[i].first, i).second;
  if (!repeated) return;
  std::vector<JsonValue::Member> merged;
  std::unordered_map<std::string, size_t> merged_position;
  for (JsonValue::Member& member : members) {
    const auto [found, inserted] = merged_position.emplace(member.first, merged.size());
    if (inserted) {
      merged.push_back(std::move(member));
    } else {
      merged[found->second].second = std::move(member.second);
    }
  }
  members = std::move(merged);
}

class Reader {
 public:
  Reader(std::string_view text, JsonDialect dialect, const JsonLimits& limits)
      : text_(text), dialect_(dialect), limits_(limits) {}
  // The text is the reader's own to take.
  Reader(std::string text, const JsonLimits& limits)
      : own_(std::move(text)), text_(own_), dialect_(JsonDialect::kRfc8259), limits_(limits) {}
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Each Read... returns false after setting the error.
  bool ReadDocument(JsonValue& out) {
    SkipSpace();
    if (!ReadValue(out, 1)) return false;
    SkipSpace();
    return pos_ == text_.size() || Fail("text after the value");
  }
  std::string error() const { return fmt::format("{} at byte {}", error_, base_ + pos_); }

 private:
  bool Fail(std::string_view what) {
    error_ = what;
    return false;
  }
  void SkipSpace() {
    while (pos_ < text_.size() &&
           (text_[pos_] == ' ' || text_[pos_] == '\n' || text_[pos_] == '\r' || text_[pos_] == '\t')) {
      ++pos_;
    }
  }
  bool Take(char c) {
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  bool ReadValue(JsonValue& out, int depth) {
    if (depth > kMaxJsonDepth)
      return Fail(fmt::format("nested deeper than {}", Counted(kMaxJsonDepth, "level")));
    if (pos_ >= text_.size()) return Fail("text ends where a value is wanted");
    switch (text_[pos_]) {
      case '{':
        return ReadObject(out, depth);
      case '[':
        return ReadArray(out, depth);
      case '"': {
        std::string text;
        if (!ReadString(text)) return false;
        out = JsonValue::String(std::move(text));
        return true;
      }
      default:
        return ReadWordOrNumber(out);
    }
  }

  bool ReadObject(JsonValue& out, int depth) {
    ++pos_;
    std::vector<JsonValue::Member> members;
    SkipSpace();
    if (!Take('}')) {
      do {
        SkipSpace();
        if (pos_ >= text_.size() || text_[pos_] != '"') return Fail("no string where a key is wanted");
        JsonValue::Member& member = members.emplace_back(std::string(), JsonValue());
        if (!ReadString(member.first)) return false;
        SkipSpace();
        if (!Take(':')) return Fail("no ':' after a key");
        SkipSpace();
        if (depth == 1) {
          in_token_list_ = std::find(limits_.token_lists.begin(), limits_.token_lists.end(), member.first) !=
                           limits_.token_lists.end();
        }
        if (!Count() || !ReadValue(member.second, depth + 1)) return false;
        SkipSpace();
      } while (Take(','));
      if (!Take('}')) return Fail("no ',' or '}' after a member");
      MergeRepeatedKeys(members);
    }
    out = JsonValue::Object(std::move(members));
    return true;
  }

  bool Count() {
    if (++num_values_ <= limits_.max_values) return true;
    return Fail(fmt::format("more than {}", Counted(limits_.max_values, "value")));
  }

  // The array that begins here if it is one of ids and nothing else; else nothing is read.
  bool TakeTokens(JsonValue& out) {
    const size_t start = pos_;
    const std::string_view list = text_.substr(pos_, text_.find(']', pos_) - pos_);
    std::vector<int32_t> tokens;
    const auto most = static_cast<size_t>(std::count(list.begin(), list.end(), ',')) + 1;
    tokens.reserve(std::min(most, JsonLimits::kMaxTokens - num_tokens_));
    ++pos_;
    do {
      SkipSpace();
      const std::optional<int32_t> token = TakeToken();
      if (!token || tokens.size() + num_tokens_ == JsonLimits::kMaxTokens) {
        pos_ = start;
        return false;
      }
      tokens.push_back(*token);
      SkipSpace();
    } while (Take(','));
    if (!Take(']')) {
      pos_ = start;
      return false;
    }
    num_tokens_ += tokens.size();
    out = JsonValue::Tokens(std::move(tokens));
    return true;
  }

  std::optional<int32_t> TakeToken() {
    int32_t token = 0;
    const char* begin = text_.data() + pos_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), token);
    const auto length = static_cast<size_t>(end - begin);
    // A sign, a leading zero, a fraction: other readers say what is wrong.
    if (error != std::errc() || !IsDigit(*begin) || (*begin == '0' && length > 1)) return std::nullopt;
    pos_ += length;
    return token;
  }

  bool ReadArray(JsonValue& out, int depth) {
    if (in_token_list_ && depth <= 3 && TakeTokens(out)) return true;
    ++pos_;
    std::vector<JsonValue> items;
    SkipSpace();
    if (!Take(']')) {
      do {
        SkipSpace();
        if (!Count() || !ReadValue(items.emplace_back(), depth + 1)) return false;
        SkipSpace();
      } while (Take(','));
      if (!Take(']')) return Fail("no ',' or ']' after an item");
    }
    out = JsonValue::Array(std::move(items));
    return true;
  }

  // The quote that ends the string which begins at pos_; npos: none.
  size_t EndOfString() const {
    for (size_t i = pos_; i < text_.size(); ++i) {
      if (text_[i] == '"') return i;
      if (text_[i] == '\\') ++i;
    }
    return std::string_view::npos;
  }

  // A string up to `end` that is most of the text is read in place and takes the text's memory. The reader goes
  // on in a copy of the rest.
  bool TakeMost(size_t end, std::string& out) {
    const size_t begin = pos_;
    size_t size = 0;  // The meaning is never longer than what stands for it.
    while (true) {
      const size_t run = pos_;
      while (pos_ < end && own_[pos_] != '\\' && static_cast<unsigned char>(own_[pos_]) >= 0x20) ++pos_;
      std::memmove(own_.data() + begin + size, own_.data() + run, pos_ - run);
      size += pos_ - run;
      if (pos_ == end) break;
      if (!Take('\\')) return Fail("raw control character inside a string");
      std::string meaning;
      if (!ReadEscape(meaning)) return false;
      meaning.copy(own_.data() + begin + size, meaning.size());
      size += meaning.size();
    }
    std::string rest = own_.substr(end + 1);
    base_ += end + 1;
    pos_ = 0;
    own_.resize(begin + size);
    own_.erase(0, begin);
    out = std::exchange(own_, std::move(rest));
    text_ = own_;
    return true;
  }

  bool ReadString(std::string& out) {
    constexpr size_t kLong = size_t{1} << 20;
    ++pos_;
    if (own_.size() >= kLong && pos_ <= own_.size() / 2) {
      const size_t end = EndOfString();
      if (end != std::string_view::npos && end - pos_ >= own_.size() / 2) return TakeMost(end, out);
    }
    while (true) {
      const size_t run = pos_;
      while (pos_ < text_.size() && text_[pos_] != '"' && text_[pos_] != '\\' &&
             static_cast<unsigned char>(text_[pos_]) >= 0x20) {
        ++pos_;
      }
      out.append(text_.substr(run, pos_ - run));
      if (pos_ >= text_.size()) return Fail("text ends inside a string");
      if (Take('"')) return true;
      if (!Take('\\')) return Fail("raw control character inside a string");
      if (!ReadEscape(out)) return false;
    }
  }

  bool ReadEscape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (pos_ >= text_.size()) return Fail("text ends inside an escape");
    const char letter = text_[pos_++];
    if (letter != 'u') {
      const size_t index = kLetters.find(letter);
      if (index == std::string_view::npos) return Fail("unknown escape");
      out += kMeanings[index];
      return true;
    }
    uint32_t code = 0;
    if (!ReadHex4(code)) return false;
    if (code >= 0xD800 && code <= 0xDFFF) {
      uint32_t low = 0;
      // A lone surrogate has no UTF-8 form.
      if (code >= 0xDC00 || !TakeWord("\\u")) return Fail("lone surrogate escape");
      if (!ReadHex4(low)) return false;
      if (low < 0xDC00 || low > 0xDFFF) return Fail("lone surrogate escape");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(code, &out);
    return true;
  }

  bool ReadHex4(uint32_t& code) {
    const std::string_view digits = text_.substr(pos_, 4);
    code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc() || end != digits.data() + 4) return Fail("no four hex digits after \\u");
    pos_ += 4;
    return true;
  }

  bool ReadWordOrNumber(JsonValue& out) {
    if (TakeWord("null")) return out = JsonValue(), true;
    if (TakeWord("true")) return out = JsonValue::Bool(true), true;
    if (TakeWord("false")) return out = JsonValue::Bool(false), true;
    if (dialect_ == JsonDialect::kPython) {
      if (TakeWord("NaN")) return out = JsonValue::Double(std::strtod("nan", nullptr)), true;
      if (TakeWord("Infinity")) return out = JsonValue::Double(std::strtod("inf", nullptr)), true;
      if (TakeWord("-Infinity")) return out = JsonValue::Double(std::strtod("-inf", nullptr)), true;
    }
    return ReadNumber(out);
  }

  void SkipDigits() {
    while (pos_ < text_.size() && IsDigit(text_[pos_])) ++pos_;
  }

  bool ReadNumber(JsonValue& out) {
    const size_t start = pos_;
    Take('-');
    if (pos_ >= text_.size() || !IsDigit(text_[pos_])) return Fail("no value");
    if (!Take('0')) SkipDigits();
    bool is_double = false;
    if (pos_ + 1 < text_.size() && text_[pos_] == '.' && IsDigit(text_[pos_ + 1])) {
      is_double = true;
      ++pos_;
      SkipDigits();
    }
    if (pos_ < text_.size() && (text_[pos_] == 'e' || text_[pos_] == 'E')) {
      size_t digit = pos_ + 1;
      if (digit < text_.size() && (text_[digit] == '+' || text_[digit] == '-')) ++digit;
      if (digit < text_.size() && IsDigit(text_[digit])) {
        is_double = true;
        pos_ = digit;
        SkipDigits();
      }
    }
    const std::string number(text_.substr(start, pos_ - start));
    if (!is_double) {
      out = JsonValue::Integer(number == "-0" ? "0" : number);
      return true;
    }
    double value = 0.0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc()) {
      value = std::strtod(number.c_str(), nullptr);  // Past the range: infinity, as Python reads it, or zero.
    }
    if (limits_.finite && !std::isfinite(value)) return Fail("a number that no double has");
    out = JsonValue::Double(value);
    return true;
  }

  std::string own_;  // Empty: the text is another's.
  std::string_view text_;
  size_t base_ = 0;  // Bytes of the document in front of text_.
  JsonDialect dialect_;
  const JsonLimits& limits_;
  bool in_token_list_ = false;
  size_t num_values_ = 0;
  size_t num_tokens_ = 0;
  size_t pos_ = 0;
  std::string error_;
};

Result<JsonValue> Read(Reader& reader, std::string_view what) {
  JsonValue value;
  if (!reader.ReadDocument(value)) {
    return Error(InvalidArgument(fmt::format("{}: not valid JSON: {}", what, reader.error())));
  }
  return value;
}

Status CheckUtf8(std::string_view text, std::string_view what) {
  const size_t bad = FindInvalidUtf8(text);
  if (bad == std::string_view::npos) return {};
  return InvalidArgument(fmt::format("{}: invalid UTF-8 at byte {}", what, bad));
}

}  // namespace

Result<JsonValue> ReadJson(std::string_view text, std::string_view what, JsonDialect dialect,
                           const JsonLimits& limits) {
  DSV4_TRY(CheckUtf8(text, what));
  Reader reader(text, dialect, limits);
  return Read(reader, what);
}

Result<JsonValue> TakeJson(std::string text, std::string_view what, const JsonLimits& limits) {
  DSV4_TRY(CheckUtf8(text, what));
  Reader reader(std::move(text), limits);
  return Read(reader, what);
}

}  // namespace dsv4::chat
