// The message line of the terminal chat: UTF-8, several lines, bracketed paste, history over sessions with
// search (Ctrl-R).
//
// The library libedit edits; this file decodes the terminal's bytes for it. No character is lost in any
// locale, unknown key sequences type nothing, and a paste is one text. LineDrawing draws: The library loses
// its cursor when the terminal's width changes. On a terminal without cursor movement (TERM=dumb) the
// terminal's own line discipline edits, a line at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::apps {

class LineEditor {
 public:
  struct Line {
    enum class Kind { kText, kInterrupted, kEnd };
    Kind kind = Kind::kEnd;
    std::string text;  // UTF-8, lines separated by '\n', without the final one.
  };
  // The words that may stand where `line` ends, each as a whole line. Tab completes their common beginning.
  using Completer = std::function<std::vector<std::string>(std::string_view line)>;

  // Between lines the terminal neither echoes nor edits: make a TypeAheadScope first. `history_path`: one
  // JSON string a line, appended to; empty: the history is of this session only. A file that cannot be read
  // or written is ignored: a chat does not end for it.
  explicit LineEditor(std::string history_path, Completer completer = {});
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // `initial` stands on the line already. A line that ends in '\' and Alt-Enter continue on the next line.
  // Returns kInterrupted after Ctrl-C, kEnd at the end of input and for Ctrl-D on an empty line.
  Line Read(std::string_view prompt, std::string_view initial = {});
  void AddHistory(const std::string& text);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Path of the chat's history: DSV4_HISTORY where it is set (empty: nowhere), else below XDG_STATE_HOME or
// ~/.local/state; empty without a home.
std::string ChatHistoryPath();

}  // namespace dsv4::apps
