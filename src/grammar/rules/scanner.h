// Reads the text of a grammar, whatever its notation: characters, white space, names, and the sets of
// characters that become expressions.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/json_text.h"
#include "grammar/regex.h"

namespace dsv4::grammar {

class Scanner {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 10;
  // `text` outlives this; it is at most kMaxBytes of UTF-8 (see CheckText).
  explicit Scanner(std::string_view text) : text_(text) {}
  static Status CheckText(std::string_view text);

  bool AtEnd() const { return at_ >= text_.size(); }
  // 0 behind the end.
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool StartsWith(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool Take(std::string_view what);
  void Skip(size_t bytes) { at_ = std::min(text_.size(), at_ + bytes); }
  std::string_view rest() const { return text_.substr(at_); }
  size_t at() const { return at_; }
  void Rewind(size_t at) { at_ = at; }

  // One character; text that was checked has one before its end.
  char32_t TakeChar();
  // Letters, digits and `_`, and the characters of `more`; empty when there is none.
  std::string TakeName(std::string_view more = "");
  // Digits, as a number of at most `most`.
  Result<int> TakeCount(int most);
  // `digits` hexadecimal digits as a character.
  Result<char32_t> TakeHex(int digits);
  // Up to the end of the line, without it.
  void SkipLine();

  int64_t line() const;
  // "grammar, line 3: <what>".
  Status Bad(std::string_view what) const;

  // One character of the set as an expression. Every set is spelled once.
  Result<Regex> Char(const CharSet& set);

 private:
  std::string_view text_;
  size_t at_ = 0;
  std::map<CharSet, Regex> spelled_;
};

}  // namespace dsv4::grammar
