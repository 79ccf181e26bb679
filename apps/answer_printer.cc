#include "apps/answer_printer.h"

#include <fmt/format.h>

namespace dsv4::apps {

void AnswerPrinter::Write(std::string_view text) {
  if (text.empty()) return;
  fmt::print(out_, "{}", text);
  at_line_start_ = text.back() == '\n';
  std::fflush(out_);
}

void AnswerPrinter::Enter(Section section) {
  if (section_ == section) return;
  if (section_ == Section::kReasoning) {
    fmt::print(out_, "{}", style_.reset);
    if (!at_line_start_) Write("\n");
  } else if (section_ != Section::kNone && !at_line_start_) {
    Write("\n");
  }
  if (section == Section::kReasoning) fmt::print(out_, "{}", style_.dim);
  section_ = section;
}

void AnswerPrinter::Print(const chat::Delta& delta) {
  switch (delta.kind) {
    case chat::Delta::Kind::kReasoning:
      Enter(Section::kReasoning);
      Write(delta.text);
      break;
    case chat::Delta::Kind::kContent:
      Enter(Section::kContent);
      Write(delta.text);
      break;
    case chat::Delta::Kind::kToolCallBegin:
      Enter(Section::kNone);
      Enter(Section::kCall);
      Write(fmt::format("{}call {}{} ", style_.bold, delta.text, style_.reset));
      break;
    case chat::Delta::Kind::kArguments:
      Write(delta.text);
      break;
    case chat::Delta::Kind::kToolCallEnd:
      Write("\n");
      break;
    case chat::Delta::Kind::kDone:
      break;
  }
}

void AnswerPrinter::EndAnswer() {
  Enter(Section::kNone);
  at_line_start_ = true;
}

}  // namespace dsv4::apps
