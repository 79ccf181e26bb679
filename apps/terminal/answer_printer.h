// Streams an answer to a terminal or a pipe: reasoning dimmed, tool calls marked, the content as it is.
#pragma once

#include <cstdio>
#include <optional>

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
  AnswerPrinter(Sink answer, Sink reasoning);

  void Print(const chat::Delta& delta);
  // Ends the last line. The printer is then ready for another answer.
  void EndAnswer();

 private:
  enum class Section { kNone, kReasoning, kContent, kCall };
  void Enter(Section section);
  void Write(std::string_view text);
  void WriteRaw(std::string_view text);
  std::optional<TextWriter> MakeWriter(bool markdown);
  // Of the section that is being written.
  const Sink& sink() const { return section_ == Section::kReasoning ? reasoning_ : answer_; }

  Sink answer_;
  Sink reasoning_;
  Section section_ = Section::kNone;
  std::optional<TextWriter> writer_;  // Of the section, where it goes to a terminal.
  bool at_line_start_ = true;
};

// Where the parts of an answer go. `reasoning` is "show" (beside the answer on a terminal, else on standard error), "hide" or
// "only".
AnswerPrinter MakeAnswerPrinter(std::string_view reasoning);

}  // namespace dsv4::apps
