// Tests of line drawing on an emulated terminal: widths, emoji, long lines and nothing left behind.
#include "apps/terminal/line_drawing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cwchar>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace dsv4::apps {
namespace {

// Ways of terminals with their rows when the width changes.
enum class Rewraps {
  kNo,
  kYes,
  kCursorStays,  // Behind a row that is full then, the cursor stays in it, as in tmux.
};

// As much of a terminal as LineDrawing uses. A row has a character a cell; the second cell of a wide one is
// L'\0'.
class Screen {
 public:
  // `joins`: an emoji of several characters is one, two cells wide.
  Screen(int columns, int rows, Rewraps rewraps, bool joins = false)
      : columns_(columns), height_(rows), rewraps_(rewraps), joins_(joins), rows_(1) {}

  void Write(const std::string& bytes) {
    const std::wstring text = FromUtf8(bytes);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == L'\x1b' && i + 1 < text.size() && text[i + 1] == L'[') {
        int number = 0;
        for (i += 2; text[i] >= L'0' && text[i] <= L'9'; ++i) number = 10 * number + (text[i] - L'0');
        Control(text[i], std::max(number, 1));
      } else if (text[i] == L'\r') {
        column_ = 0;
        last_ = 0;
      } else if (text[i] == L'\n') {
        LineFeed();
      } else {
        Put(text[i]);
      }
    }
  }

  // Every line from row `from` on, blanks at its end left out; rows that the terminal wrapped are one line.
  std::vector<std::wstring> Lines(size_t from) const {
    std::vector<std::wstring> lines(1);
    for (size_t i = from; i < rows_.size(); ++i) {
      lines.back() += rows_[i].text;
      if (!rows_[i].goes_on) lines.emplace_back();
    }
    for (std::wstring& line : lines) line.erase(line.find_last_not_of(L' ') + 1);
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    return lines;
  }

  void Resize(int columns) {
    if (rewraps_ != Rewraps::kNo) {
      std::vector<Row> rows(1);
      size_t cursor_row = 0;
      int cursor_column = 0;
      for (size_t i = 0; i < rows_.size(); ++i) {
        std::wstring text = rows_[i].text;
        if (i == row_) text.resize(std::max(text.size(), static_cast<size_t>(column_)), L' ');
        for (size_t j = 0; j <= text.size(); ++j) {
          const bool wide = j + 1 < text.size() && text[j + 1] == L'\0';
          const size_t needed = j == text.size() ? 0 : wide ? 2 : 1;
          if (rows.back().text.size() + std::max<size_t>(needed, 1) > static_cast<size_t>(columns) &&
              !(j == text.size() &&
                (rewraps_ == Rewraps::kCursorStays || !(i == row_ && j == static_cast<size_t>(column_))))) {
            rows.back().goes_on = true;
            rows.emplace_back();
          }
          if (i == row_ && j == static_cast<size_t>(column_)) {
            cursor_row = rows.size() - 1;
            cursor_column = static_cast<int>(rows.back().text.size());
          }
          if (j < text.size()) rows.back().text += text[j];
        }
        if (!rows_[i].goes_on && i + 1 < rows_.size()) rows.emplace_back();
      }
      rows_ = std::move(rows);
      row_ = cursor_row;
      column_ = cursor_column;
    } else {
      for (Row& row : rows_) row.text.resize(std::min(row.text.size(), static_cast<size_t>(columns)));
      column_ = std::min(column_, columns - 1);
    }
    columns_ = columns;
  }

  Cell cursor() const {
    return {.row = static_cast<int>(row_ - top()), .column = std::min(column_, columns_ - 1)};
  }
  int columns() const { return columns_; }
  int height() const { return height_; }
  size_t row() const { return row_; }

 private:
  struct Row {
    std::wstring text;
    bool goes_on = false;
  };

  static std::wstring FromUtf8(const std::string& bytes) {
    std::wstring text;
    std::mbstate_t state = {};
    for (size_t i = 0; i < bytes.size();) {
      wchar_t character = 0;
      const size_t used = std::mbrtowc(&character, bytes.data() + i, bytes.size() - i, &state);
      text += character;
      i += used;
    }
    return text;
  }

  size_t top() const {
    return rows_.size() > static_cast<size_t>(height_) ? rows_.size() - static_cast<size_t>(height_) : 0;
  }

  void LineFeed() {
    if (++row_ == rows_.size()) rows_.emplace_back();
  }

  void Put(wchar_t character) {
    const wchar_t before = std::exchange(last_, character);
    const int width = ::wcwidth(character);
    if (width == 0) return;  // Shown in the cell before.
    const bool half_of_flag =
        before >= 0x1f1e6 && before <= 0x1f1ff && character >= 0x1f1e6 && character <= 0x1f1ff;
    if (joins_ && half_of_flag) last_ = 0;
    if (joins_ && (before == 0x200d || half_of_flag || (character >= 0x1f3fb && character <= 0x1f3ff)))
      return;
    if (column_ + width > columns_) {
      rows_[row_].goes_on = true;
      LineFeed();
      column_ = 0;
    }
    std::wstring& text = rows_[row_].text;
    if (text.size() < static_cast<size_t>(column_ + width))
      text.resize(static_cast<size_t>(column_ + width), L' ');
    text[static_cast<size_t>(column_)] = character;
    if (width == 2) text[static_cast<size_t>(column_) + 1] = L'\0';
    column_ += width;
  }

  void Control(wchar_t command, int number) {
    column_ = std::min(column_, columns_ - 1);
    switch (command) {
      case L'A':
        row_ = std::max(row_, top() + static_cast<size_t>(number)) - static_cast<size_t>(number);
        break;
      case L'B':
        row_ = std::min(row_ + static_cast<size_t>(number), rows_.size() - 1);
        break;
      case L'C':
        column_ = std::min(column_ + number, columns_ - 1);
        break;
      case L'J':
        rows_.resize(row_ + 1);
        [[fallthrough]];
      case L'K':
        if (column_ == 0) {
          rows_[row_] = {};
          if (row_ > 0) rows_[row_ - 1].goes_on = false;
        } else if (rows_[row_].text.size() > static_cast<size_t>(column_)) {
          // As tmux has it, these cells still count, and the row above a cleared one ends.
          std::fill(rows_[row_].text.begin() + column_, rows_[row_].text.end(), L' ');
        }
        break;
      default:
        FAIL() << "no such control: " << static_cast<int>(command);
    }
  }

  int columns_, height_;
  Rewraps rewraps_;
  bool joins_;
  wchar_t last_ = 0;
  std::vector<Row> rows_;
  size_t row_ = 0;
  int column_ = 0;
};

std::vector<std::wstring> WantedLines(const std::wstring& text) {
  std::vector<std::wstring> lines(1);
  for (const wchar_t character : text) {
    if (character == L'\n') {
      lines.emplace_back();
    } else if (::wcwidth(character) > 0) {
      lines.back() += character;
      if (::wcwidth(character) == 2) lines.back() += L'\0';
    }
  }
  for (std::wstring& line : lines) line.erase(line.find_last_not_of(L' ') + 1);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

class LineDrawingTest : public testing::TestWithParam<Rewraps> {
 protected:
  void SetUp() override { ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr); }
};

// Typing, pasting, deleting, walking and resizing in random order: the screen always has the text above, then
// the line, once.
TEST_P(LineDrawingTest, NothingOfAnOldDrawingStays) {
  const std::vector<std::wstring> parts = {
      L"x", L"w\xf6rter und mehr ", L"\x5317\x4eac", L"abcdefghij", L"\n", L" ", L"e\x301"};
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t limit) { return random() % limit; };
    Screen screen(40, 1000, GetParam());
    screen.Write("above\r\n\r\n");
    LineDrawing drawing(GetParam() != Rewraps::kNo);
    std::wstring text;
    size_t cursor = 0;
    for (int step = 0; step < 40; ++step) {
      switch (below(5)) {
        case 0:
        case 1: {
          const std::wstring& part = parts[below(parts.size())];
          text.insert(cursor, part);
          cursor += part.size();
          break;
        }
        case 2: {
          const size_t count = std::min<size_t>(cursor, below(30));
          text.erase(cursor - count, count);
          cursor -= count;
          break;
        }
        case 3:
          cursor = below(text.size() + 1);
          break;
        default: {
          screen.Resize(static_cast<int>(20 + below(60)));
          screen.Write(drawing.Resize(screen.columns(), screen.cursor()));
        }
      }
      screen.Write(drawing.Update(L"> " + text, 2 + cursor, screen.columns(), screen.height()));
      std::vector<std::wstring> wanted = {L"above", L""};
      const std::vector<std::wstring> line = WantedLines(L"> " + text);
      wanted.insert(wanted.end(), line.begin(), line.end());
      ASSERT_EQ(screen.Lines(0), wanted) << "seed " << seed << ", step " << step;
    }
    screen.Write(drawing.End());
    screen.Write("below");
    EXPECT_EQ(screen.Lines(0).back(), L"below");
  }
}

TEST_P(LineDrawingTest, WhatTheTerminalDoesIsSeenAtItsCursor) {
  Screen screen(90, 24, GetParam());
  screen.Write("above\r\n");
  LineDrawing drawing(GetParam() == Rewraps::kNo);
  const std::wstring text = L"> " + std::wstring(105, L'x');
  screen.Write(drawing.Update(text, text.size(), 90, 24));
  for (const int columns : {40, 61, 23, 120, 80, 40, 90}) {
    screen.Resize(columns);
    screen.Write(drawing.Resize(columns, screen.cursor()));
    screen.Write(drawing.Update(text, text.size(), columns, 24));
    EXPECT_EQ(screen.Lines(0), (std::vector<std::wstring>{L"above", text})) << columns;
  }
}

INSTANTIATE_TEST_SUITE_P(Terminals, LineDrawingTest,
                         testing::Values(Rewraps::kNo, Rewraps::kYes, Rewraps::kCursorStays),
                         [](const auto& terminal) {
                           return terminal.param == Rewraps::kNo    ? "that_do_not_wrap_anew"
                                  : terminal.param == Rewraps::kYes ? "that_wrap_anew"
                                                                    : "that_wrap_anew_around_the_cursor";
                         });

TEST(LineDrawing, TypingAtTheEndWritesWhatWasTyped) {
  LineDrawing drawing(true);
  EXPECT_EQ(drawing.Update(L"> ab", 4, 10, 24), "> ab");
  EXPECT_EQ(drawing.Update(L"> abc", 5, 10, 24), "c");
  EXPECT_EQ(drawing.Update(L"> abc", 4, 10, 24), "\r\x1b[4C");
  EXPECT_EQ(drawing.Update(L"> abc", 4, 10, 24), "");
}

// Some terminals show an emoji of several characters in two cells, others each of its characters. On both,
// typing, deleting and moving leave the line and the cursor where they belong.
TEST(LineDrawing, EmojiOfSeveralCharactersTakeAsManyCellsAsTheTerminalLikes) {
  ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr);
  const std::vector<std::wstring> parts = {L"x",
                                           L"\x1f468\x200d\x1f469\x200d\x1f467",
                                           L"\x1f1e9\x1f1ea",
                                           L"\x270c\x1f3fd",
                                           L"\x5317",
                                           L" ",
                                           L"\x2764\xfe0f",
                                           L"e\x301"};
  for (const bool joins : {false, true}) {
    for (unsigned seed = 0; seed < 200; ++seed) {
      std::mt19937 random(seed);
      const auto below = [&](size_t limit) { return random() % limit; };
      Screen screen(400, 24, Rewraps::kYes, joins);
      LineDrawing drawing(true);
      std::vector<std::wstring> typed;  // Characters as a reader sees them.
      size_t cursor = 0;
      for (int step = 0; step < 40; ++step) {
        const size_t what = below(5);
        if (what == 4) {  // Another line, as from the history.
          typed.assign(below(6), parts[below(parts.size())]);
          cursor = typed.size();
        } else if (what < 2) {
          typed.insert(typed.begin() + static_cast<ptrdiff_t>(cursor++), parts[below(parts.size())]);
        } else if (what == 2 && cursor > 0) {
          typed.erase(typed.begin() + static_cast<ptrdiff_t>(--cursor));
        } else {
          cursor = below(typed.size() + 1);
        }
        std::wstring before = L"> ";
        for (size_t i = 0; i < cursor; ++i) before += typed[i];
        std::wstring text = before;
        for (size_t i = cursor; i < typed.size(); ++i) text += typed[i];
        screen.Write(drawing.Update(text, before.size(), screen.columns(), screen.height()));
        // As if it had been written at once.
        Screen whole(400, 24, Rewraps::kYes, joins);
        LineDrawing once(true);
        whole.Write(once.Update(text, text.size(), whole.columns(), whole.height()));
        Screen front(400, 24, Rewraps::kYes, joins);
        LineDrawing part(true);
        front.Write(part.Update(before, before.size(), front.columns(), front.height()));
        ASSERT_EQ(screen.Lines(0), whole.Lines(0))
            << "joins " << joins << ", seed " << seed << ", step " << step;
        ASSERT_EQ(screen.cursor().column, front.cursor().column)
            << "joins " << joins << ", seed " << seed << ", step " << step;
      }
    }
  }
}

TEST(LineDrawing, OfMoreRowsThanTheScreenThoseAroundTheCursorAreShown) {
  std::wstring text = L"> ";
  for (int i = 0; i < 30; ++i) text += std::to_wstring(i) + L"\n";
  Screen screen(20, 5, Rewraps::kYes);
  LineDrawing drawing(true);
  screen.Write(drawing.Update(text, text.size(), 20, 5));
  EXPECT_EQ(screen.Lines(0), (std::vector<std::wstring>{L"26", L"27", L"28", L"29"}));
  screen.Write(drawing.Update(text, 0, 20, 5));
  EXPECT_EQ(screen.Lines(0), (std::vector<std::wstring>{L"> 0", L"1", L"2", L"3", L"4"}));
}

}  // namespace
}  // namespace dsv4::apps
