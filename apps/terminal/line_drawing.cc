// Drawing of an edited line: wrapped rows, wide characters, and the least bytes that update the terminal.
#include "apps/terminal/line_drawing.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cwchar>

namespace dsv4::apps {
namespace {

constexpr int kTab = 8;
constexpr int kMinColumns = 2;  // The widest character.
// From the first column on. Some terminals keep a screen that is cleared from its first cell on among the
// lines above it.
constexpr std::string_view kClearFromHere = "\x1b[C\x1b[J\r\x1b[K";
constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

bool IsSet(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

std::string Utf8(wchar_t character) {
  std::array<utf8proc_uint8_t, 4> encoded = {};
  const utf8proc_ssize_t length =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), encoded.data());
  return {encoded.begin(), encoded.begin() + length};
}

constexpr wchar_t kJoiner = 0x200d;
bool IsTone(wchar_t character) { return character >= 0x1f3fb && character <= 0x1f3ff; }
bool IsRegional(wchar_t character) { return character >= 0x1f1e6 && character <= 0x1f1ff; }
bool Joins(wchar_t character) {
  return character == kJoiner || character == 0xfe0f || IsTone(character) || IsRegional(character);
}

// Whether the character at `i` is part of an emoji that began before it.
bool Clings(std::wstring_view text, size_t i) {
  if (i == 0) return false;
  if (text[i - 1] == kJoiner || IsTone(text[i])) return true;
  size_t before = 0;
  while (before < i && IsRegional(text[i - 1 - before])) ++before;
  return IsRegional(text[i]) && before % 2 == 1;  // The second half of a flag.
}

}  // namespace

bool LineDrawing::Row::joins() const {
  return std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.joins; });
}

std::string LineDrawing::Row::Until(int column) const {
  std::string bytes;
  int at = 0;
  for (const Piece& piece : pieces) {
    if (at >= column && piece.width > 0 && !piece.clings) break;
    bytes += piece.bytes;
    at += piece.width;
  }
  return bytes;
}

int LineDrawing::Row::width() const {
  int sum = 0;
  for (const Piece& piece : pieces) sum += piece.width;
  return sum;
}

LineDrawing::Piece LineDrawing::Shown(wchar_t character, int column, int columns) {
  if (character == L'\t') {
    const int width = std::min(kTab - column % kTab, columns - column);
    return {.bytes = std::string(static_cast<size_t>(width), ' '), .width = width};
  }
  if (character < L' ' || character == 0x7f) {
    return {.bytes = {'^', static_cast<char>(character ^ 0x40)}, .width = 2};
  }
  const int width = ::wcwidth(character);
  return width < 0 ? Piece{.bytes = std::string(kReplacement), .width = 1}
                   : Piece{.bytes = Utf8(character), .width = width};
}

std::vector<LineDrawing::Row> LineDrawing::Wrap(std::wstring_view text, size_t cursor, int columns,
                                                Cell* at) {
  std::vector<Row> rows(1);
  int column = 0;
  const auto next_row = [&](bool goes_on) {
    rows.back().goes_on =
        goes_on && !rows.back().joins();  // Such a row may be full for us and not for the terminal.
    rows.emplace_back();
    column = 0;
  };
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == cursor) *at = {.row = static_cast<int>(rows.size()) - 1, .column = column};
    if (i == text.size()) break;
    if (text[i] == L'\n') {
      next_row(false);
      continue;
    }
    Piece piece = Shown(text[i], column, columns);
    piece.joins = Joins(text[i]);
    piece.clings = Clings(text, i);
    if (column + piece.width > columns) {
      next_row(true);
      if (i == cursor) *at = {.row = static_cast<int>(rows.size()) - 1, .column = 0};
    }
    column += piece.width;
    rows.back().pieces.push_back(std::move(piece));
    // A mark that combines with the last character of a full row belongs to it.
    const bool combines = i + 1 < text.size() && text[i + 1] >= L' ' && ::wcwidth(text[i + 1]) == 0;
    if (column >= columns && !combines) next_row(true);
  }
  return rows;
}

void LineDrawing::Begin() {
  rows_.clear();
  cursor_ = {};
  first_ = 0;
}

std::string LineDrawing::MoveTo(Cell cell) {
  std::string bytes;
  if (cell.row < cursor_.row) bytes += fmt::format("\x1b[{}A", cursor_.row - cell.row);
  if (cell.row > cursor_.row) bytes += fmt::format("\x1b[{}B", cell.row - cursor_.row);
  if (cell.row != cursor_.row || cell.column != cursor_.column) {
    bytes += "\r";
    const auto row = static_cast<size_t>(cell.row);
    if (row < rows_.size() && rows_[row].joins())
      bytes += rows_[row].Until(cell.column);
    else if (cell.column > 0)
      bytes += fmt::format("\x1b[{}C", cell.column);
  }
  cursor_ = cell;
  return bytes;
}

std::string LineDrawing::Write(size_t row, size_t piece) {
  std::string bytes;
  for (size_t i = row; i < rows_.size(); ++i) {
    for (size_t j = i == row ? piece : 0; j < rows_[i].pieces.size(); ++j) bytes += rows_[i].pieces[j].bytes;
    if (i + 1 == rows_.size()) break;
    if (!rows_[i].goes_on) {
      bytes += "\r\n";
    } else if (rows_[i + 1].pieces.empty()) {
      bytes += " \r";  // The terminal waits at the end of a full row until there is more.
    }
  }
  cursor_ = {.row = static_cast<int>(rows_.size()) - 1, .column = rows_.back().width()};
  return bytes;
}

std::string LineDrawing::Update(std::wstring_view text, size_t cursor, int columns, int screen_rows) {
  Cell at;
  std::vector<Row> rows = Wrap(text, cursor, std::max(columns, kMinColumns), &at);
  const auto most = static_cast<size_t>(std::max(screen_rows, 1));
  const auto row_of_cursor = static_cast<size_t>(at.row);
  const size_t old_first = first_;
  first_ = std::min(first_, rows.size() - std::min(rows.size(), most));
  first_ = std::clamp(first_, row_of_cursor >= most ? row_of_cursor - most + 1 : 0, row_of_cursor);
  rows.erase(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(first_));
  if (rows.size() > most) rows.resize(most);
  rows.back().goes_on = false;
  at.row -= static_cast<int>(first_);

  const size_t both = std::min(rows.size(), rows_.size());
  size_t row = 0;
  if (first_ == old_first) {
    row = static_cast<size_t>(
        std::mismatch(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(both), rows_.begin()).first -
        rows.begin());
  }
  if (row == rows.size() && row == rows_.size()) return MoveTo(at);

  // For the terminal, a row that went on and now ends is one with the next until it is cleared, from its
  // first column on. The cells of a row whose end is cleared still count.
  bool clear = rows.size() < rows_.size();
  for (size_t i = row; i < both; ++i) {
    clear |= (rows_[i].goes_on && !rows[i].goes_on) || rows[i].width() < rows_[i].width();
    // Longer rows are judged by what they show: other changes may have fewer cells.
    const bool longer = rows[i].pieces.size() >= rows_[i].pieces.size() &&
                        std::equal(rows_[i].pieces.begin(), rows_[i].pieces.end(), rows[i].pieces.begin());
    clear |= !longer && (rows[i].joins() || rows_[i].joins());
  }
  size_t piece = 0;
  if (row == both && row > 0) {
    --row;
    if (!clear) piece = rows[row].pieces.size();
  } else if (row < both && !clear) {
    const std::vector<Piece>& now = rows[row].pieces;
    const std::vector<Piece>& before = rows_[row].pieces;
    while (piece < std::min(now.size(), before.size()) && now[piece] == before[piece]) ++piece;
    while (piece > 0 && piece < now.size() && now[piece].width == 0) --piece;  // With what it combines with.
  }
  std::string bytes;
  if (clear) {
    bytes += MoveTo({.row = static_cast<int>(row)}) + std::string(kClearFromHere);
    if (row > 0 && rows[row - 1].goes_on && !rows[row - 1].pieces.empty()) {
      // The row above has lost its next one, and finds it by going on again.
      --row;
      piece = rows[row].pieces.size() - 1;
      while (piece > 0 && rows[row].pieces[piece].width == 0) --piece;
    }
  }
  Cell begin = {.row = static_cast<int>(row)};
  for (size_t i = 0; i < piece; ++i) begin.column += rows[row].pieces[i].width;
  bytes += MoveTo(begin);
  rows_ = std::move(rows);
  bytes += Write(row, piece);
  return bytes + MoveTo(at);
}

Cell LineDrawing::CursorRewrapped(int columns) const {
  Cell at;
  const auto next_row = [&] { at = {.row = at.row + 1}; };
  for (int i = 0; i <= cursor_.row && i < static_cast<int>(rows_.size()); ++i) {
    int column = 0;
    for (const Piece& piece : rows_[static_cast<size_t>(i)].pieces) {
      if (i == cursor_.row && column >= cursor_.column) break;
      column += piece.width;
      for (int cell = 0; cell < piece.width; ++cell) {
        if (cell == 0 && piece.width == 2 && at.column + 2 > columns) next_row();
        if (++at.column >= columns) next_row();
      }
    }
    if (i < cursor_.row && !rows_[static_cast<size_t>(i)].goes_on) next_row();
  }
  return at;
}

std::string LineDrawing::Resize(int columns, const std::optional<Cell>& cursor) {
  Cell rewrapped = CursorRewrapped(columns);
  if (cursor) {
    // Behind a row that is full now: most terminals keep the cursor in it, at its last cell or one further.
    if (rewrapped.row > 0 && rewrapped.column == 0 && cursor->column >= columns - 1) {
      rewrapped = {.row = rewrapped.row - 1, .column = cursor->column};
    }
    const bool as_rewrapped = cursor->column == rewrapped.column;
    const bool as_kept = cursor->column == std::min(cursor_.column, columns - 1);
    if (as_rewrapped != as_kept) rewraps_ = as_rewrapped;
  }
  int above = rewraps_ ? rewrapped.row : cursor_.row;
  if (cursor) above = std::min(above, cursor->row);
  Begin();
  return "\r" + (above > 0 ? fmt::format("\x1b[{}A", above) : std::string()) + std::string(kClearFromHere);
}

std::string LineDrawing::End() {
  std::string bytes;
  if (!rows_.empty())
    bytes = MoveTo({.row = static_cast<int>(rows_.size()) - 1, .column = rows_.back().width()});
  Begin();
  return bytes + "\r\n";
}

bool TerminalSeemsToRewrap() {
  if (IsSet("TMUX")) return true;
  const char* value = std::getenv("TERM");
  const std::string_view term = value != nullptr ? value : "";
  return !IsSet("XTERM_VERSION") && term != "linux" && !term.starts_with("screen") &&
         !term.starts_with("putty");
}

}  // namespace dsv4::apps
