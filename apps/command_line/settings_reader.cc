// Settings of a file: the part of TOML that options need, with the line of each.
#include "apps/command_line/settings_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"

namespace dsv4::apps {
namespace {

bool IsBare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<std::vector<Setting>> Read() {
    std::vector<Setting> settings;
    std::vector<std::string> table;
    std::map<std::vector<std::string>, int> seen;
    for (SkipLines(); !AtEnd(); SkipLines()) {
      if (Take('[')) {
        if (Peek() == '[') return Wrong("a list of tables; wanted [COMMAND]");
        DSV4_ASSIGN_OR_RETURN(table, Key());
        if (!Take(']')) return Wrong("the name of a table without ']'");
      } else {
        const int line = line_;
        DSV4_ASSIGN_OR_RETURN(std::vector<std::string> key, Key());
        if (!Take('='))
          return Wrong(fmt::format("no '=' behind {}; wanted NAME = VALUE", fmt::join(key, ".")));
        DSV4_ASSIGN_OR_RETURN(std::vector<std::string> values, Value());
        key.insert(key.begin(), table.begin(), table.end());
        if (const auto [first, is_new] = seen.emplace(key, line); !is_new)
          return Wrong(
              fmt::format("{} a second time; the first is in line {}", fmt::join(key, "."), first->second));
        settings.push_back({std::move(key), std::move(values), line});
      }
      SkipBlanks();
      if (!AtEnd() && Peek() != '\n')
        return Wrong(fmt::format("{} behind the value; wanted one setting a line", Rest()));
    }
    return settings;
  }

 private:
  bool AtEnd() const { return at_ == text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[at_]; }
  char Next() {
    if (Peek() == '\n') ++line_;
    return text_[at_++];
  }
  // Blanks and a comment, not the end of the line.
  void SkipBlanks() {
    while (!AtEnd() && (Peek() == ' ' || Peek() == '\t' || Peek() == '\r')) Next();
    if (Peek() == '#')
      while (!AtEnd() && Peek() != '\n') Next();
  }
  void SkipLines() {
    for (SkipBlanks(); Peek() == '\n'; SkipBlanks()) Next();
  }
  bool Take(char c) {
    SkipBlanks();
    if (Peek() != c) return false;
    Next();
    return true;
  }
  std::string Rest() const {
    return fmt::format("'{}'",
                       text_.substr(at_, std::min<size_t>(text_.find('\n', at_), text_.size()) - at_));
  }
  tl::unexpected<Status> Wrong(std::string_view what) const {
    return Error(InvalidArgument(fmt::format("line {}: {}", line_, what)));
  }

  Result<std::vector<std::string>> Key() {
    std::vector<std::string> parts;
    do {
      SkipBlanks();
      if (Peek() == '"' || Peek() == '\'') {
        DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), String());
        continue;
      }
      const size_t begin = at_;
      while (IsBare(Peek())) Next();
      if (at_ == begin) return Wrong(fmt::format("got {}, wanted a name", AtEnd() ? "the end" : Rest()));
      parts.emplace_back(text_.substr(begin, at_ - begin));
    } while (Take('.'));
    return parts;
  }

  Result<std::string> String() {
    const char quote = Next();
    if (text_.substr(at_, 2) == std::string(2, quote))
      return Wrong("a string of several lines; wanted one line");
    std::string out;
    while (Peek() != quote) {
      if (AtEnd() || Peek() == '\n') return Wrong("a string that does not end");
      const char c = Next();
      if (c != '\\' || quote == '\'') {
        out += c;
        continue;
      }
      static constexpr std::string_view kNames = "btnfr\"\\e";
      static constexpr std::string_view kMeant = "\b\t\n\f\r\"\\\x1b";
      const char name = AtEnd() ? '\0' : Next();
      if (name == 'u' || name == 'U') {
        const size_t digits = name == 'u' ? 4 : 8;
        const std::string hex(text_.substr(at_, digits));
        if (hex.size() != digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
          return Wrong(fmt::format("\\{} wants {}", name, Counted(digits, "hexadecimal digit")));
        at_ += digits;
        AppendUtf8(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)), &out);
      } else if (const size_t found = kNames.find(name); found != std::string_view::npos && name != '\0') {
        out += kMeant[found];
      } else {
        return Wrong(fmt::format("\\{} in a string; '…' takes backslashes as they are", name));
      }
    }
    Next();
    return out;
  }

  Result<std::vector<std::string>> Value() {
    SkipBlanks();
    std::vector<std::string> values;
    if (!Take('[')) {
      DSV4_ASSIGN_OR_RETURN(values.emplace_back(), Single());
      return values;
    }
    while (true) {
      SkipLines();
      if (Take(']')) return values;
      if (AtEnd()) return Wrong("a list without ']'");
      DSV4_ASSIGN_OR_RETURN(values.emplace_back(), Single());
      SkipLines();
      if (!Take(',') && Peek() != ']') return Wrong("a list without ',' between its values");
    }
  }

  Result<std::string> Single() {
    if (Peek() == '"' || Peek() == '\'') return String();
    const size_t begin = at_;
    while (!AtEnd() && std::string_view(" \t\r\n,]#").find(Peek()) == std::string_view::npos) Next();
    std::string word(text_.substr(begin, at_ - begin));
    const bool number =
        !word.empty() && std::string_view("+-.0123456789").find(word[0]) != std::string_view::npos;
    if (word != "true" && word != "false" && word != "inf" && word != "nan" && !number) {
      return Wrong(
          word.empty()
              ? std::string("no value behind '='")
              : fmt::format("got {}, wanted a number, true, false, or a text in quotes: \"{}\"", word, word));
    }
    std::erase(word, '_');  // Between digits.
    return word;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

Result<std::vector<Setting>> ReadSettings(std::string_view text) { return Reader(text).Read(); }

}  // namespace dsv4::apps
