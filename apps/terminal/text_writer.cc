// Streaming writer of Markdown to a terminal: wrapping, emphasis, lists, code and tables.
#include "apps/terminal/text_writer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "apps/terminal/markdown_line.h"

namespace dsv4::apps {
namespace {

// Marked text that is not closed after so many bytes is none.
constexpr size_t kLongestMark = 400;
// A line whose first bytes may still turn out to be a heading, a fence or a rule; never longer.
constexpr size_t kLongestOpening = 12;
constexpr int kMinCellWidth = 4;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n'; }
bool IsAlnum(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}

size_t RunLength(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && text[end] == text[at]) ++end;
  return end - at;
}

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
    hanging_ = std::string(indent, ' ') + "\x1b[2m│ \x1b[0m";
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
    if (i != 1) rows.push_back(TableCells(table_[i]));
  }
  const size_t num_columns = rows.front().size();
  // Cells are drawn first, by a writer of their own that wraps at the width of the column.
  const auto draw = [&](const std::string& cell, int width, bool bold) {
    std::string out;
    TextWriter writer({.markdown = true,
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
        at = line.find('m', at) + 1;
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
          out += std::string(static_cast<size_t>(blanks - left), ' ') + " \x1b[2m│\x1b[0m ";
      }
      Raw(out, 1);
      EndLine();
    }
    if (r > 0) continue;
    std::string rule = "\x1b[2m";
    for (size_t i = 0; i < num_columns; ++i) {
      for (int n = 0; n < widths[i]; ++n) rule += "─";
      if (i + 1 < num_columns) rule += "─┼─";
    }
    Raw(rule + "\x1b[0m", 1);
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

// ---- Inside a line

// Writes what is certain of `text`, and returns how many bytes that is.
size_t TextWriter::Inline(std::string_view text, bool whole, uint32_t look) {
  size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (options_.markdown && (c == '`' || c == '*' || c == '_' || c == '~')) {
      const size_t marked = Marked(text, at, whole, look);
      if (marked == std::string_view::npos) return at;
      if (marked > 0) {
        at += marked;
        continue;
      }
      const size_t run = RunLength(text, at);  // They mark nothing.
      Text(text.substr(at, run), look);
      at += run;
      continue;
    }
    if (options_.markdown && c == '\\') {
      if (at + 1 == text.size() && !whole) return at;
      constexpr std::string_view kEscapable = "*_`#|~>-+.!";
      if (at + 1 < text.size() && kEscapable.find(text[at + 1]) != std::string_view::npos) ++at;
      Text(text.substr(at, 1), look);
      ++at;
      continue;
    }
    const size_t end =
        std::min(options_.markdown ? text.find_first_of("`*_~\\", at) : text.size(), text.size());
    Text(text.substr(at, end - at), look);
    at = end;
  }
  return at;
}

size_t TextWriter::Marked(std::string_view text, size_t at, bool whole, uint32_t look) {
  const char c = text[at];
  const size_t run = RunLength(text, at);
  const size_t open_end = at + run;
  if (open_end == text.size()) return whole ? 0 : std::string_view::npos;
  const size_t waits = whole || text.size() - at > kLongestMark ? 0 : std::string_view::npos;
  if (c == '`') {
    for (size_t i = open_end; i < text.size();) {
      if (text[i] != '`') {
        ++i;
        continue;
      }
      const size_t close = RunLength(text, i);
      if (i + close == text.size() && !whole) return std::string_view::npos;  // The run may go on.
      if (close == run) {
        std::string_view inner = text.substr(open_end, i - open_end);
        if (inner.size() > 2 && inner.front() == ' ' && inner.back() == ' ')
          inner = inner.substr(1, inner.size() - 2);
        Text(inner, look | kCode);
        return i + close - at;
      }
      i += close;
    }
    return waits;
  }
  if (run > 3 || (c == '~' && run != 2) || IsSpace(text[open_end])) return 0;
  const char before = at > 0 ? text[at - 1] : before_;
  const bool inside_word = IsAlnum(before) && (c == '_' || (run == 1 && IsAlnum(text[open_end])));
  if (inside_word) return 0;
  uint32_t mark = kStruck;
  if (c != '~') mark = run == 1 ? kItalic : run == 2 ? kBold : kBold | kItalic;
  for (size_t i = open_end; i < text.size();) {
    if (text[i] == '\\') {
      i += 2;
      continue;
    }
    if (text[i] == '`' && c != '`') {
      const size_t ticks = RunLength(text, i);
      const size_t close = text.find(std::string(ticks, '`'), i + ticks);
      if (close != std::string_view::npos) {
        i = close + ticks;
        continue;
      }
    }
    if (text[i] != c) {
      ++i;
      continue;
    }
    const size_t close = RunLength(text, i);
    if (i + close == text.size() && !whole)
      return std::string_view::npos;  // The run, and what follows it, may come.
    const bool word_goes_on = i + close < text.size() && IsAlnum(text[i + close]);
    if (close == run && !IsSpace(text[i - 1]) && !(word_goes_on && (c == '_' || run == 1))) {
      const std::string_view inner = text.substr(open_end, i - open_end);
      if (c == '_' && run == 2 && std::all_of(inner.begin(), inner.end(), IsAlnum)) return 0;  // __init__
      const char outer = before_;
      before_ = c;
      Inline(inner, /*whole=*/true, look | mark);
      before_ = outer;
      return i + close - at;
    }
    i += close;
  }
  return waits;
}

// ---- Words

void TextWriter::Text(std::string_view text, uint32_t look) {
  for (size_t at = 0; at < text.size();) {
    if (text[at] == ' ' || text[at] == '\t') {
      FlushWord();
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
  if (word_.empty()) word_look_ = look_;
  if (look != look_) SetLook(word_, look);
  word_ += bytes;
  word_width_ += width;
}

void TextWriter::FlushWord() {
  if (word_.empty()) return;
  const bool at_start = column_ <= hanging_width_;
  std::string out;
  if (column_ + spaces_ + word_width_ > Columns() && !at_start) {
    out = "\n" + hanging_;
    if (hanging_.find('\x1b') != std::string::npos) out += Escape(word_look_);
    column_ = hanging_width_;
  } else {
    out = std::string(static_cast<size_t>(std::max(spaces_, 0)), ' ');
    column_ += spaces_;
  }
  out += word_;
  column_ += word_width_;
  spaces_ = 0;
  word_.clear();
  word_width_ = 0;
  options_.write(out);
}

std::string TextWriter::Escape(uint32_t look) {
  struct Code {
    uint32_t bit;
    std::string_view code;
  };
  constexpr std::array kCodes = {Code{kBold, "1"},    Code{kItalic, "3"},  Code{kUnderline, "4"},
                                 Code{kStruck, "9"},  Code{kDim, "2"},     Code{kCode, "36"},
                                 Code{kString, "32"}, Code{kNumber, "33"}, Code{kKeyword, "35"},
                                 Code{kAdded, "32"},  Code{kRemoved, "31"}};
  std::string out = "\x1b[0";
  for (const Code& code : kCodes) {
    if ((look & code.bit) != 0) {
      out += ';';
      out += code.code;
    }
  }
  return out + 'm';
}

void TextWriter::SetLook(std::string& out, uint32_t look) {
  if (look != look_) out += Escape(look);
  look_ = look;
}

void TextWriter::Raw(std::string_view text, int width) {
  if (text.empty()) return;
  options_.write(text);
  column_ += width;
}

void TextWriter::Rule(int width) {
  std::string out = "\x1b[2m";
  for (int i = 0; i < width; ++i) out += "─";
  Raw(out + "\x1b[0m", width);
}

int TextWriter::Columns() const { return std::max(options_.columns(), 2); }

}  // namespace dsv4::apps
