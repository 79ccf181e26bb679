// Text of an answer on a terminal, as it streams: words wrap whole, and Markdown is drawn (emphasis, headings, lists, quotes, code,
// tables, links, formulas). What is not complete yet (a word, an emphasis, a line of code, a table) waits for its end; Finish writes it as it is.
// Control characters are replaced: an answer must not drive the terminal.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/terminal/code_highlight.h"

namespace dsv4::apps {

class TextWriter {
 public:
  struct Options {
    bool markdown = false;                        // Else only words wrap, and no escape sequence is written.
    bool colours = true;                          // Else Markdown is drawn without colours and dimming.
    std::function<int()> columns;                 // Asked for every line; a terminal may be resized.
    std::function<void(std::string_view)> write;  // Gets UTF-8 and escape sequences.
  };
  explicit TextWriter(Options options) : options_(std::move(options)) {}

  // `text` holds whole characters.
  void Write(std::string_view text);
  // Writes what waits and forgets all state, so that another text may follow. Ends no line.
  void Finish();

 private:
  // Look of a character: bits.
  enum Look : uint32_t {
    kPlain = 0,
    kBold = 1,
    kItalic = 2,
    kUnderline = 4,
    kStruck = 8,
    kDim = 16,
    kCode = 32,  // The rest are colours.
    kString = 64,
    kNumber = 128,
    kKeyword = 256,
    kAdded = 512,
    kRemoved = 1024,
  };
  // Bits above: one more than the index of the address in links_ that a click opens; 0: none.
  static constexpr int kLinkShift = 16;
  static uint32_t LookOf(CodeKind kind);
  // The sequences that bring the look `from` to `to`.
  std::string Change(uint32_t from, uint32_t to) const;
  std::string Dimmed(std::string_view text) const;

  // Blocks
  void Advance(bool finish);
  bool BeginLine(std::string_view line, bool whole);
  void CodeLine(std::string_view line);
  void FlushTable();
  bool DrawTable();
  void FormulaLine(std::string_view line);
  void DrawFormula(std::string_view tex);
  void FlushFormula();
  void EndLine();

  // Inside a line
  size_t Inline(std::string_view text, bool whole, uint32_t look);
  // The length of the marked text that begins at `at`, having written it; 0: there is none; npos: its end may still come.
  size_t Marked(std::string_view text, size_t at, bool whole, uint32_t look);
  size_t Formula(std::string_view text, size_t at, bool whole, uint32_t look);
  size_t Link(std::string_view text, size_t at, bool whole, uint32_t look);

  // Words
  void Text(std::string_view text, uint32_t look);
  void Character(std::string_view bytes, int width, bool closing, uint32_t look);
  void FlushWord();
  void SetLook(std::string& out, uint32_t look);
  void Raw(std::string_view text, int width);
  void Rule(int width);
  int Columns() const;

  Options options_;
  std::string
      pending_;  // Text of the line that is being read; from its start until that is known to be no block of its own.
  bool begun_ = false;  // Kind of the line has been decided.
  char before_ = ' ';   // The byte in front of pending_, in the same line.
  uint32_t line_look_ = kPlain;
  std::string hanging_;  // In front of every further row of the line.
  int hanging_width_ = 0;

  std::optional<CodeHighlighter> code_;
  std::string fence_;
  std::vector<std::string> table_;
  std::vector<std::string> formula_;  // Lines of a formula that stands on lines of its own.
  std::string formula_end_;
  std::vector<std::string> links_;  // Addresses so far.

  std::string word_;
  int word_width_ = 0;
  uint32_t before_word_ = kPlain;  // Look of what was written last,
  uint32_t word_look_ = kPlain;    // at the beginning of word_,
  uint32_t look_ = kPlain;         // and at its end.
  int spaces_ = 0;                 // In front of word_.
  uint32_t spaces_look_ = kPlain;
  bool break_after_ = false;
  bool joined_ = false;
  int column_ = 0;
};

}  // namespace dsv4::apps
