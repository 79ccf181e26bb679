// Streams an answer to a terminal or a pipe: reasoning dimmed, tool calls marked, the content as it is.
#pragma once

#include <cstdio>

#include "apps/terminal.h"
#include "chat/delta.h"

namespace dsv4::apps {

class AnswerPrinter {
 public:
  AnswerPrinter(std::FILE* out, Style style) : out_(out), style_(style) {}

  void Print(const chat::Delta& delta);
  // Ends the last line. The printer is then ready for another answer.
  void EndAnswer();

 private:
  enum class Section { kNone, kReasoning, kContent, kCall };
  void Enter(Section section);
  void Write(std::string_view text);

  std::FILE* out_;
  Style style_;
  Section section_ = Section::kNone;
  bool at_line_start_ = true;
};

}  // namespace dsv4::apps
