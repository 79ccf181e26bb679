// Printer of streamed deltas: dimmed reasoning, marked calls, raw content in a pipe.
#include "apps/terminal/answer_printer.h"

#include <fmt/format.h>

#include <utility>

#include "apps/terminal/printable.h"
#include "base/error_output.h"

namespace dsv4::apps {
namespace {

// An answer that cannot be written is an error in the end (main.cc); what goes to standard error is not.
void PutText(std::FILE* out, std::string_view text) {
  if (out == stderr) return WriteError(text);
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}

}  // namespace

AnswerPrinter::AnswerPrinter(Sink answer, Sink reasoning, Sink aside, IsAnswered is_answered)
    : answer_(answer), reasoning_(reasoning), aside_(aside), is_answered_(std::move(is_answered)) {}

void AnswerPrinter::WriteRaw(std::string_view text) {
  std::FILE* out = sink().file;
  if (text.empty() || out == nullptr) return;
  PutText(out, text);
  at_line_start_ = text.back() == '\n';
}

void AnswerPrinter::Write(std::string_view text) {
  if (writer_) {
    writer_->Write(text);
  } else {
    WriteRaw(text);
  }
}

// Writer for the section that begins.
std::optional<TextWriter> AnswerPrinter::MakeWriter(bool markdown) {
  std::FILE* out = sink().file;
  if (out == nullptr || !sink().terminal) return std::nullopt;
  return TextWriter({.markdown = markdown && !sink().style.bold.empty(),
                     .colours = sink().style.colours,
                     .columns = [out] { return TerminalColumns(fileno(out)); },
                     .write = [this](std::string_view text) { WriteRaw(text); }});
}

void AnswerPrinter::Enter(Section section) {
  if (section_ == section) return;
  if (writer_) writer_->Finish();
  writer_.reset();
  if (section_ == Section::kReasoning && sink().file != nullptr) PutText(sink().file, sink().style.reset);
  if (section_ != Section::kNone && !at_line_start_) WriteRaw("\n");
  section_ = section;
  if (section == Section::kReasoning && sink().file != nullptr) PutText(sink().file, sink().style.dim);
  if (section == Section::kReasoning || section == Section::kContent)
    writer_ = MakeWriter(/*markdown=*/section == Section::kContent);
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
      call_is_aside_ = is_answered_ && is_answered_(delta.text);
      Enter(Section::kCall);
      Write(fmt::format("{}call {}{} ", sink().style.bold, Printable(delta.text), sink().style.reset));
      writer_ = MakeWriter(/*markdown=*/false);
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

void AnswerPrinter::NoteEcho() {
  at_line_start_ = false;
  // If nothing was printed the line is empty again.
  if (section_ == Section::kNone && StderrIsTerminal() && TerminalCanMoveCursor()) PrintError("\r\x1b[2K");
}

void AnswerPrinter::EndAnswer() {
  Enter(Section::kNone);
  at_line_start_ = true;
}

AnswerPrinter MakeAnswerPrinter(std::string_view reasoning, AnswerPrinter::IsAnswered is_answered) {
  const AnswerPrinter::Sink out = {
      .file = stdout, .style = Style(StdoutIsTerminal()), .terminal = StdoutIsTerminal()};
  const AnswerPrinter::Sink error = {
      .file = stderr, .style = Style(StderrIsTerminal()), .terminal = StderrIsTerminal()};
  const AnswerPrinter::Sink none;
  const AnswerPrinter::Sink& aside = StdoutIsTerminal() ? out : error;
  if (reasoning == "only") return {none, out, none, {}};
  return {out, reasoning == "hide" ? none : aside, aside, std::move(is_answered)};
}

}  // namespace dsv4::apps
