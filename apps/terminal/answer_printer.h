// Streams an answer to a terminal or a pipe: reasoning dimmed, tool calls marked, the content as it is.
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>

#include "apps/terminal/terminal.h"
#include "apps/terminal/text_writer.h"
#include "chat/delta.h"

namespace dsv4::apps {

class AnswerPrinter {
 public:
  struct Sink {
    std::FILE* file = nullptr;  // Null: left out.
    Style style = Style(false);
    bool terminal =
        false;  // Words wrap whole and, where there is a style, Markdown is drawn; else the text goes out as it is.
  };
  // Whether a command will answer calls of this tool.
  using IsAnswered = std::function<bool(std::string_view tool)>;
  // `aside` gets such calls.
  AnswerPrinter(Sink answer, Sink reasoning, Sink aside, IsAnswered is_answered);

  void Print(const chat::Delta& delta);
  // The terminal has shown something by itself (^C): what follows begins a line.
  void NoteEcho();
  // Ends the last line. The printer is then ready for another answer.
  void EndAnswer();

 private:
  enum class Section { kNone, kReasoning, kContent, kCall };
  void Enter(Section section);
  void Write(std::string_view text);
  void WriteRaw(std::string_view text);
  std::optional<TextWriter> MakeWriter(bool markdown);
  // Sink of the section that is being written.
  const Sink& sink() const {
    if (section_ == Section::kReasoning) return reasoning_;
    return section_ == Section::kCall && call_is_aside_ ? aside_ : answer_;
  }

  Sink answer_;
  Sink reasoning_;
  Sink aside_;
  IsAnswered is_answered_;
  bool call_is_aside_ = false;
  Section section_ = Section::kNone;
  std::optional<TextWriter> writer_;  // Writer of the section, where it goes to a terminal.
  bool at_line_start_ = true;
};

// Sinks to which the parts of an answer go. `reasoning` is "show" (beside the answer on a terminal, else on
// standard error), "hide" or "only". Calls belong to the answer. But a file or a pipe gets the model's words
// only: calls that commands answer go to standard error.
AnswerPrinter MakeAnswerPrinter(std::string_view reasoning, AnswerPrinter::IsAnswered is_answered);

}  // namespace dsv4::apps
