// Streaming writer of Markdown to a terminal: wrapping, emphasis, lists, code and tables.
#include "apps/terminal/text_writer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "apps/terminal/formula_text.h"
#include "apps/terminal/markdown_line.h"

namespace dsv4::apps {
namespace {

// A line whose first bytes may still turn out to be a heading, a fence or a rule; never longer.
constexpr size_t kLongestOpening = 12;
constexpr int kMinCellWidth = 4;
// OSC 8: what follows opens an address, until one without an address comes.
constexpr std::string_view kLink = "\x1b]8;;";
constexpr std::string_view kEndOfLink = "\x1b\\";
// Opening and end of a formula on lines of its own.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFormulas = {
    {{"$$", "$$"}, {"\\[", "\\]"}, {"\\begin{", ""}}};

// Wide punctuation that belongs to the character in front of it.
bool IsClosing(utf8proc_int32_t point) {
  constexpr std::u32string_view kClosing =
      U"、。，．！？：；）〕］｝〉》」』】’”…ーぁぃぅぇぉっゃゅょァィゥェォッャュョ";
  return kClosing.find(static_cast<char32_t>(point)) != std::u32string_view::npos;
}

struct Point {
  utf8proc_int32_t value = 0xfffd;
  size_t length = 1;
  int width = 1;
  std::string_view bytes;
};

// The character at the start of `text`; what a terminal would obey, and what is no UTF-8, is U+FFFD.
Point NextPoint(std::string_view text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  Point point = {.bytes = kReplacement};
  const utf8proc_ssize_t length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                                   static_cast<utf8proc_ssize_t>(text.size()), &point.value);
  if (length <= 0) {
    point.value = 0xfffd;
    return point;
  }
  point.length = static_cast<size_t>(length);
  const bool control = point.value < 0x20 || (point.value >= 0x7f && point.value < 0xa0);
  if (control) {
    point.value = 0xfffd;
    return point;
  }
  point.bytes = text.substr(0, point.length);
  point.width = utf8proc_charwidth(point.value);
  return point;
}

int Width(std::string_view text) {
  int width = 0;
  for (size_t at = 0; at < text.size();) {
    const Point point = NextPoint(text.substr(at));
    width += point.width;
    at += point.length;
  }
  return width;
}

}  // namespace

uint32_t TextWriter::LookOf(CodeKind kind) {
  switch (kind) {
    case CodeKind::kPlain:
      return kPlain;
    case CodeKind::kComment:
      return kDim;
    case CodeKind::kString:
      return kString;
    case CodeKind::kNumber:
      return kNumber;
    case CodeKind::kKeyword:
      return kKeyword;
    case CodeKind::kAdded:
      return kAdded;
    case CodeKind::kRemoved:
      return kRemoved;
  }
  return kPlain;
}

void TextWriter::Write(std::string_view text) {
  pending_ += text;
  Advance(/*finish=*/false);
}

void TextWriter::Finish() {
  Advance(/*finish=*/true);
  FlushTable();
  FlushFormula();
  FlushWord();
  std::string reset;
  SetLook(reset, kPlain);
  if (!reset.empty()) options_.write(reset);
  TextWriter fresh(std::move(options_));
  fresh.column_ = column_;
  *this = std::move(fresh);
}

// ---- Blocks

void TextWriter::Advance(bool finish) {
  for (;;) {
    const size_t newline = pending_.find('\n');
    const bool whole = newline != std::string::npos || finish;
    const std::string line = pending_.substr(0, newline);
    if (newline == std::string::npos && line.empty()) return;
    if (code_) {
      if (!whole) return;
      CodeLine(line);
    } else if (!formula_.empty()) {
      if (!whole) return;
      FormulaLine(line);
    } else if (!begun_ && !BeginLine(line, whole)) {
      return;
    }
    if (begun_) {
      const std::string_view rest = std::string_view(pending_).substr(0, pending_.find('\n'));
      const size_t used = Inline(rest, whole, line_look_);
      if (used > 0) before_ = rest[used - 1];
      pending_.erase(0, used);
      if (used < rest.size() || !whole) return;
    } else {
      pending_.erase(0, line.size());  // The line was a block of its own.
    }
    if (pending_.empty()) return;  // Finished without a line end.
    pending_.erase(0, 1);
    if (begun_) EndLine();
    begun_ = false;
    before_ = ' ';
  }
}

// Decides what the line is. False: more of it must come first. True without begun_: it has been written, its end too.
bool TextWriter::BeginLine(std::string_view line, bool whole) {
  const size_t indent = std::min(line.find_first_not_of(" \t"), line.size());
  const std::string_view body = line.substr(indent);
  const auto begin = [&](size_t used, std::string_view shown, uint32_t shown_look) {
    begun_ = true;
    const std::string blanks(indent, ' ');
    Raw(blanks, static_cast<int>(indent));
    hanging_ = blanks;
    if (!shown.empty()) {
      std::string text;
      SetLook(text, shown_look);
      text += shown;
      SetLook(text, kPlain);
      Raw(text, Width(shown));
      hanging_ += std::string(static_cast<size_t>(Width(shown)), ' ');
    }
    hanging_width_ = static_cast<int>(indent) + Width(shown);
    if (hanging_width_ > Columns() / 2) {
      hanging_.clear();
      hanging_width_ = 0;
    }
    if (used > 0) before_ = pending_[used - 1];
    pending_.erase(0, used);
    return true;
  };
  line_look_ = kPlain;
  if (body.empty() && !whole) return false;
  if (!options_.markdown) return begin(indent, "", kPlain);
  if (body.starts_with('|')) {
    if (!whole) return false;
    table_.emplace_back(line);
    return true;
  }
  FlushTable();
  if (body.empty()) return begin(indent, "", kPlain);
  const char first = body.front();
  if (first == '$' || first == '\\') {
    for (const auto& [open, close] : kFormulas) {
      if (!whole && open.starts_with(body)) return false;
      if (!body.starts_with(open)) continue;
      if (!whole) return false;
      formula_end_ = close;
      if (close.empty()) {  // An environment.
        const size_t end = body.find('}');
        if (end == std::string_view::npos) break;
        formula_end_ = "\\end" + std::string(body.substr(open.size() - 1, end + 2 - open.size()));
      }
      const size_t end = body.find(formula_end_, open.size());
      const std::string_view behind =
          body.substr(std::min(end, body.size() - formula_end_.size()) + formula_end_.size());
      const bool alone = Trimmed(end == std::string_view::npos ? body.substr(open.size()) : behind).empty();
      if (!alone && !(close.empty() && end == std::string_view::npos)) break;  // It stands within the line.
      FormulaLine(line);
      return true;
    }
  }
  if (first == '`' || first == '~') {
    const size_t run = RunLength(body, 0);
    if (run == body.size() && run < 3 && !whole) return false;
    if (run < 3) return begin(indent, "", kPlain);
    if (!whole) return false;
    if (body.find('`', run) != std::string_view::npos) return begin(indent, "", kPlain);  // Code in a line.
    fence_ = std::string(run, first);
    const std::string_view info = Trimmed(body.substr(run));
    code_.emplace(info.substr(0, info.find_first_of(" \t{")));
    Text(line, kDim);
    EndLine();
    return true;
  }
  if (!whole && body.size() < kLongestOpening) {
    // "- [ ]", "---", "12. ", "### " and "**bold**" begin alike.
    const size_t run = RunLength(body, 0);
    if (std::string_view("-*_#+>").find(first) != std::string_view::npos && run == body.size()) return false;
    if (std::string_view("-*_").find(first) != std::string_view::npos &&
        body.find_first_not_of(" -*_") == std::string_view::npos) {
      return false;
    }
    const size_t digits = std::min(body.find_first_not_of("0123456789"), body.size());
    if (digits > 0 && digits + 1 >= body.size() && digits < 4) return false;
  }
  if (IsRule(body)) {
    if (!whole) return false;
    Rule(Columns());
    EndLine();
    return true;
  }
  if (first == '#') {
    const size_t level = RunLength(body, 0);
    if (level <= 6 && level < body.size() && body[level] == ' ') {
      line_look_ = kBold | (level <= 2 ? kUnderline : kPlain);
      return begin(indent + level + 1, "", kPlain);
    }
  }
  if (std::string_view("-*+").find(first) != std::string_view::npos && body.size() > 1 && body[1] == ' ') {
    return begin(indent + 2, "• ", kPlain);
  }
  if (first == '>') {
    const size_t used = body.size() > 1 && body[1] == ' ' ? 2 : 1;
    begin(indent + used, "│ ", kDim);
    hanging_ = std::string(indent, ' ') + Dimmed("│ ");
    return true;
  }
  const size_t digits = std::min(body.find_first_not_of("0123456789"), body.size());
  if (digits > 0 && digits < 4 && digits + 1 < body.size() && (body[digits] == '.' || body[digits] == ')') &&
      body[digits + 1] == ' ') {
    return begin(indent + digits + 2, std::string(body.substr(0, digits + 2)), kPlain);
  }
  return begin(indent, "", kPlain);
}

void TextWriter::CodeLine(std::string_view line) {
  const std::string_view body = Trimmed(line);
  const bool closes =
      body.starts_with(fence_) && body.find_first_not_of(fence_.front()) == std::string_view::npos;
  hanging_.clear();
  hanging_width_ = 0;
  std::string out;
  if (closes) {
    code_.reset();
    SetLook(out, kDim);
    out += line;
  } else {
    for (const CodeSpan& span : code_->Line(line)) {
      SetLook(out, LookOf(span.kind));
      for (size_t at = 0; at < span.text.size();) {
        const Point point = NextPoint(span.text.substr(at));
        out += span.text[at] == '\t' ? std::string_view("\t") : point.bytes;
        at += point.length;
      }
    }
  }
  SetLook(out, kPlain);
  // The terminal cuts a line of code where it ends, so that copied code is the answer's.
  Raw(out, Width(line));
  EndLine();
}

// One more line of a formula, the first with what opens it.
void TextWriter::FormulaLine(std::string_view line) {
  constexpr size_t kMostLines = 60;
  const bool first = formula_.empty();
  const std::string_view body = Trimmed(line);
  if (body.empty() || formula_.size() == kMostLines) {
    FlushFormula();
    Text(line, kPlain);
    EndLine();
    return;
  }
  formula_.emplace_back(line);
  const bool environment = formula_end_.starts_with("\\end");
  const size_t open = first && !environment ? formula_end_.size() : 0;
  if (body.size() < open + formula_end_.size() || !body.ends_with(formula_end_)) return;
  std::string tex;
  for (const std::string& each : formula_) tex += each + "\n";
  std::string_view inner = Trimmed(tex);
  if (!environment) inner = inner.substr(formula_end_.size(), inner.size() - 2 * formula_end_.size());
  DrawFormula(inner);
}

void TextWriter::DrawFormula(std::string_view tex) {
  const std::optional<std::string> drawn = FormulaText(tex);
  if (!drawn) return FlushFormula();
  formula_.clear();
  for (size_t at = 0; at <= drawn->size();) {
    const size_t end = std::min(drawn->find('\n', at), drawn->size());
    hanging_ = "  ";
    hanging_width_ = 2;
    Raw(hanging_, hanging_width_);
    Text(std::string_view(*drawn).substr(at, end - at), kPlain);
    EndLine();
    at = end + 1;
  }
}

// Writes a formula that has no form as text as it came.
void TextWriter::FlushFormula() {
  for (const std::string& line : std::exchange(formula_, {})) {
    Text(line, kPlain);
    EndLine();
  }
}

void TextWriter::FlushTable() {
  if (table_.empty()) return;
  if (table_.size() < 2 || !IsDelimiterRow(table_[1]) || !DrawTable()) {
    for (const std::string& row : table_) {
      Text(row, kPlain);
      EndLine();
    }
  }
  table_.clear();
}

// False, having written nothing, where the columns do not fit.
bool TextWriter::DrawTable() {
  std::vector<std::vector<std::string>> rows;
  const std::vector<std::string> delimiters = TableCells(table_[1]);
  for (size_t i = 0; i < table_.size(); ++i) {
    if (i == 1) continue;
    rows.push_back(TableCells(table_[i]));
    if (rows.back().size() > delimiters.size()) rows.back() = TableCells(table_[i], /*formulas=*/true);
  }
  const size_t num_columns = rows.front().size();
  // Cells are drawn first, by a writer of their own that wraps at the width of the column.
  const auto draw = [&](const std::string& cell, int width, bool bold) {
    std::string out;
    TextWriter writer({.markdown = true,
                       .colours = options_.colours,
                       .columns = [width] { return width; },
                       .write = [&out](std::string_view text) { out += text; }});
    writer.begun_ = true;  // A cell is no block.
    writer.line_look_ = bold ? kBold : kPlain;
    writer.Write(cell);
    writer.Finish();
    std::vector<std::string> lines(1);
    for (const char c : out) {
      if (c == '\n')
        lines.emplace_back();
      else
        lines.back() += c;
    }
    return lines;
  };
  const auto drawn_width = [](std::string_view line) {
    int width = 0;
    for (size_t at = 0; at < line.size();) {
      if (line[at] == '\x1b') {
        const bool link = line.substr(at).starts_with("\x1b]");
        at = line.find(link ? kEndOfLink : "m", at) + (link ? kEndOfLink.size() : 1);
        continue;
      }
      const Point point = NextPoint(line.substr(at));
      width += point.width;
      at += point.length;
    }
    return width;
  };
  std::vector<int> widths(num_columns, 1);
  for (std::vector<std::string>& row : rows) {
    row.resize(std::max(row.size(), num_columns));
    for (size_t i = num_columns; i < row.size(); ++i) row[num_columns - 1] += " | " + row[i];
    row.resize(num_columns);
    for (size_t i = 0; i < num_columns; ++i) {
      widths[i] = std::max(widths[i], drawn_width(draw(row[i], 1 << 20, false).front()));
    }
  }
  const int room = Columns() - 3 * static_cast<int>(num_columns - 1) - 1;
  for (;;) {
    int sum = 0;
    for (const int width : widths) sum += width;
    if (sum <= room) break;
    const auto widest = std::max_element(widths.begin(), widths.end());
    if (*widest <= kMinCellWidth) return false;
    --*widest;
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<std::vector<std::string>> cells;
    size_t height = 1;
    for (size_t i = 0; i < num_columns; ++i) {
      cells.push_back(draw(rows[r][i], widths[i], r == 0));
      height = std::max(height, cells.back().size());
    }
    for (size_t h = 0; h < height; ++h) {
      std::string out;
      for (size_t i = 0; i < num_columns; ++i) {
        const std::string text = h < cells[i].size() ? cells[i][h] : std::string();
        const int blanks = std::max(0, widths[i] - drawn_width(text));
        const std::string& rule = i < delimiters.size() ? delimiters[i] : delimiters.back();
        const bool right = rule.ends_with(':');
        const int left = right ? (rule.starts_with(':') ? blanks / 2 : blanks) : 0;
        out += std::string(static_cast<size_t>(left), ' ') + text;
        if (i + 1 < num_columns)
          out += std::string(static_cast<size_t>(blanks - left), ' ') + " " + Dimmed("│") + " ";
      }
      Raw(out, 1);
      EndLine();
    }
    if (r > 0) continue;
    std::string rule;
    for (size_t i = 0; i < num_columns; ++i) {
      for (int n = 0; n < widths[i]; ++n) rule += "─";
      if (i + 1 < num_columns) rule += "─┼─";
    }
    Raw(Dimmed(rule), 1);
    EndLine();
  }
  return true;
}

void TextWriter::EndLine() {
  FlushWord();
  std::string out;
  SetLook(out, kPlain);
  options_.write(out + "\n");
  column_ = 0;
  spaces_ = 0;
  hanging_.clear();
  hanging_width_ = 0;
  break_after_ = joined_ = false;
}

// ---- Words

void TextWriter::Text(std::string_view text, uint32_t look) {
  for (size_t at = 0; at < text.size();) {
    if (text[at] == ' ' || text[at] == '\t') {
      FlushWord();
      if (spaces_ == 0) spaces_look_ = look;
      spaces_ += text[at] == '\t' ? 4 : 1;
      ++at;
      continue;
    }
    if (text[at] == '\r' && at + 1 == text.size()) return;  // End of a line that ends in "\r\n".
    const Point point = NextPoint(text.substr(at));
    Character(point.bytes, point.width, IsClosing(point.value), look);
    joined_ = point.value == 0x200d;
    at += point.length;
  }
}

void TextWriter::Character(std::string_view bytes, int width, bool closing, uint32_t look) {
  // A row may end at any wide character, as it may at a blank.
  if (width > 0 && !joined_ && !closing && (width == 2 || break_after_)) FlushWord();
  if (width > 0) break_after_ = width == 2;
  if (word_width_ + width > Columns() - hanging_width_) FlushWord();
  if (word_.empty()) {
    before_word_ = look_;
    word_look_ = look_ = look;
  }
  SetLook(word_, look);
  word_ += bytes;
  word_width_ += width;
}

void TextWriter::FlushWord() {
  if (word_.empty()) return;
  const bool at_start = column_ <= hanging_width_;
  std::string out;
  if (column_ + spaces_ + word_width_ > Columns() && !at_start) {
    // Bytes in front of a row have no look of the text.
    out = Change(before_word_, kPlain) + "\n" + hanging_ + Change(kPlain, word_look_);
    column_ = hanging_width_;
  } else if (spaces_ > 0) {
    out = Change(before_word_, spaces_look_) + std::string(static_cast<size_t>(spaces_), ' ') +
          Change(spaces_look_, word_look_);
    column_ += spaces_;
  } else {
    out = Change(before_word_, word_look_);
  }
  out += word_;
  column_ += word_width_;
  spaces_ = 0;
  word_.clear();
  word_width_ = 0;
  options_.write(out);
}

std::string TextWriter::Change(uint32_t from, uint32_t to) const {
  struct Code {
    uint32_t bit;
    std::string_view code;
  };
  constexpr std::array kCodes = {Code{kBold, "1"},    Code{kItalic, "3"},  Code{kUnderline, "4"},
                                 Code{kStruck, "9"},  Code{kDim, "2"},     Code{kCode, "36"},
                                 Code{kString, "32"}, Code{kNumber, "33"}, Code{kKeyword, "35"},
                                 Code{kAdded, "32"},  Code{kRemoved, "31"}};
  constexpr uint32_t kWithoutColours = kBold | kItalic | kUnderline | kStruck;
  const uint32_t styles = options_.colours ? (1U << kLinkShift) - 1 : kWithoutColours;
  std::string out;
  if ((from & styles) != (to & styles)) {
    out = "\x1b[0";
    for (const Code& code : kCodes) {
      if ((to & styles & code.bit) == 0) continue;
      out += ';';
      out += code.code;
    }
    out += 'm';
  }
  const uint32_t link = to >> kLinkShift;
  if (from >> kLinkShift != link) {
    out += kLink;
    if (link != 0) out += links_[link - 1];
    out += kEndOfLink;
  }
  return out;
}

std::string TextWriter::Dimmed(std::string_view text) const {
  return Change(kPlain, kDim) + std::string(text) + Change(kDim, kPlain);
}

void TextWriter::SetLook(std::string& out, uint32_t look) {
  out += Change(look_, look);
  look_ = look;
}

void TextWriter::Raw(std::string_view text, int width) {
  if (text.empty()) return;
  options_.write(text);
  column_ += width;
}

void TextWriter::Rule(int width) {
  std::string out;
  for (int i = 0; i < width; ++i) out += "─";
  Raw(Dimmed(out), width);
}

int TextWriter::Columns() const { return std::max(options_.columns(), 2); }

}  // namespace dsv4::apps
