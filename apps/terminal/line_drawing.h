// Drawing of an edited line on a terminal, and the bytes that bring it up to date.
//
// A line that is longer than the terminal is wide is written on without a break. The terminal wraps it and
// knows that its rows belong together: it is selected as one line, and wrapped anew when the width changes.
// Not all terminals wrap anew: xterm and the Linux console leave the rows as they are. The terminal's answer
// to where its cursor is tells which it did.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::apps {

// From 0.
struct Cell {
  int row = 0;
  int column = 0;
};

// Nothing here writes: every function returns what is to be written.
class LineDrawing {
 public:
  // Whether terminals of this environment wrap anew, until one shows what it does.
  explicit LineDrawing(bool rewraps) : rewraps_(rewraps) {}

  // The cursor is at the beginning of an empty row, and nothing is drawn.
  void Begin();
  // Draws `text` with the cursor in front of its character `cursor`. Of a text with more rows than the
  // screen, those around the cursor.
  std::string Update(std::wstring_view text, size_t cursor, int columns, int screen_rows);
  // The terminal has another width. Clears what was drawn, and begins. `cursor`: where the terminal says it
  // is on its screen, if it does.
  std::string Resize(int columns, const std::optional<Cell>& cursor);
  // Goes on behind the line, and begins.
  std::string End();

 private:
  // A character as it is shown.
  struct Piece {
    std::string bytes;
    int width = 0;
    bool joins =
        false;  // Widths of an emoji of several characters: terminals do not agree on how many cells it takes.
    bool clings =
        false;  // To the one before it: a terminal that shows both in one cell has no column between them.
    bool operator==(const Piece&) const = default;
  };
  struct Row {
    std::vector<Piece> pieces;
    bool goes_on = false;  // In the next row; else the line ends here.
    int width() const;
    bool joins() const;
    // Bytes to write from the beginning of the row on, to be behind that many columns wherever the terminal
    // has them.
    std::string Until(int column) const;
    bool operator==(const Row&) const = default;
  };
  // The rows of a text; *at: the cell of its character `cursor`.
  static std::vector<Row> Wrap(std::wstring_view text, size_t cursor, int columns, Cell* at);
  static Piece Shown(wchar_t character, int column, int columns);
  std::string MoveTo(Cell cell);
  // Writes rows_ from that piece of that row on, where the cursor is.
  std::string Write(size_t row, size_t piece);
  // Cell of the cursor in the drawn rows when a terminal of so many columns has wrapped them anew.
  Cell CursorRewrapped(int columns) const;

  std::vector<Row> rows_;  // As they are drawn.
  Cell cursor_;
  size_t first_ = 0;  // The row of the text that is drawn first.
  bool rewraps_;
};

// Whether terminals like the one of this process wrap anew, as far as its environment says.
bool TerminalSeemsToRewrap();

}  // namespace dsv4::apps
