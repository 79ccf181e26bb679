// Inside of a line of Markdown: emphasis, code, links and formulas.
#include <algorithm>
#include <cctype>
#include <optional>

#include "apps/terminal/formula_text.h"
#include "apps/terminal/markdown_line.h"
#include "apps/terminal/text_writer.h"

namespace dsv4::apps {
namespace {

constexpr size_t kNone = std::string_view::npos;
// Marked text that is not closed after so many bytes is none.
constexpr size_t kLongestMark = 400;
constexpr size_t kMostLinks = 0xffff;  // An index has 16 bits of a look.

bool IsAlnum(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}

// The address of a link as a terminal gets it; empty: one that no one follows, or that has other characters than an address.
std::string Address(std::string_view text) {
  const bool followed =
      text.starts_with("http://") || text.starts_with("https://") || text.starts_with("mailto:");
  if (!followed) return {};
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte == 0x7f) return {};
    if (byte < 0x80) {
      out += c;
      continue;
    }
    constexpr std::string_view kHex = "0123456789ABCDEF";
    out += {'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

// Behind the bracket that closes the one at `at`; kNone: none does.
size_t Closed(std::string_view text, size_t at, char open, char close) {
  int inside = 0;
  for (size_t i = at; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == open) {
      ++inside;
    } else if (text[i] == close && --inside == 0) {
      return i + 1;
    }
  }
  return kNone;
}

}  // namespace

// Writes what is certain of `text`, and returns how many bytes that is.
size_t TextWriter::Inline(std::string_view text, bool whole, uint32_t look) {
  size_t at = 0;
  while (at < text.size()) {
    if (!options_.markdown) {
      Text(text.substr(at), look);
      return text.size();
    }
    const char c = text[at];
    constexpr std::string_view kMarks = "`*_~\\$[!<";
    if (kMarks.find(c) != kNone) {
      size_t marked = 0;
      if (c == '`' || c == '*' || c == '_' || c == '~') marked = Marked(text, at, whole, look);
      if (c == '$' || c == '\\') marked = Formula(text, at, whole, look);
      if (c == '[' || c == '!' || c == '<') marked = Link(text, at, whole, look);
      if (marked == kNone) return at;
      if (marked == 0 && c == '\\') {
        constexpr std::string_view kEscapable = "*_`#|~>-+.!<$";
        if (at + 1 < text.size() && kEscapable.find(text[at + 1]) != kNone) ++at;
        Text(text.substr(at, 1), look);
        marked = 1;
      } else if (marked == 0) {  // They mark nothing.
        marked = c == '[' || c == '!' || c == '<' ? 1 : RunLength(text, at);
        Text(text.substr(at, marked), look);
      }
      at += marked;
      continue;
    }
    const size_t end = std::min(text.find_first_of(kMarks, at), text.size());
    Text(text.substr(at, end - at), look);
    at = end;
  }
  return at;
}

size_t TextWriter::Formula(std::string_view text, size_t at, bool whole, uint32_t look) {
  const std::string_view rest = text.substr(at);
  if (rest.size() == 1) return whole ? 0 : kNone;
  std::string_view open, close;
  if (rest.starts_with("\\(")) {
    open = "\\(", close = "\\)";
  } else if (rest.starts_with("\\[")) {
    open = "\\[", close = "\\]";
  } else if (rest.starts_with("$$")) {
    open = close = "$$";
  } else if (rest.front() == '$') {
    open = close = "$";
  } else {
    return 0;
  }
  if (open.front() == '$') {
    // A sum of money is none: behind the first sign comes no blank, in front of the last neither, and no letter or digit follows.
    const char before = at > 0 ? text[at - 1] : before_;
    if (IsAlnum(before) || before == '$' || before == '_' || (open.size() == 1 && IsSpace(rest[1]))) return 0;
  }
  const size_t end = rest.find(close, open.size());
  if (end == kNone) return whole || rest.size() > kLongestMark ? 0 : kNone;
  const size_t used = end + close.size();
  if (open.front() == '$' && used == rest.size() && !whole) return kNone;  // The next character decides.
  const std::string_view tex = rest.substr(open.size(), end - open.size());
  if (Trimmed(tex).empty()) return 0;
  if (open == "$" &&
      (IsSpace(tex.back()) ||
       (used < rest.size() && (IsAlnum(rest[used]) || rest[used] == '$' || rest[used] == '_'))))
    return 0;
  const std::optional<std::string> drawn = FormulaText(tex);
  const bool inside = drawn && drawn->find('\n') == std::string::npos;
  Text(inside ? std::string_view(*drawn) : rest.substr(0, used), look);
  return used;
}

// [text](address), ![text](address), <address>: the text is the terminal's link, and the address stands behind it for those that have none.
size_t TextWriter::Link(std::string_view text, size_t at, bool whole, uint32_t look) {
  const size_t waits = whole || text.size() - at > kLongestMark ? 0 : kNone;
  size_t begin = at;
  if (text[at] == '!' && ++begin == text.size()) return waits;
  std::string_view label;
  std::string_view target;
  size_t end = 0;
  if (text[begin] == '<') {
    end = text.find('>', begin);
    if (begin != at) return 0;
    const std::string_view inner = text.substr(begin + 1, std::min(end, text.size()) - begin - 1);
    const bool may_be =
        inner.find_first_of(" <\"'") == kNone &&
        (std::string_view("https://").starts_with(inner.substr(0, 8)) || inner.starts_with("http") ||
         std::string_view("mailto:").starts_with(inner.substr(0, 7)));
    if (!may_be) return 0;
    if (end == kNone) return waits;
    label = target = inner;
    ++end;
  } else {
    if (text[begin] != '[') return 0;
    const size_t closed = Closed(text, begin, '[', ']');
    if (closed == kNone) return waits;
    if (closed == text.size()) return waits;  // An address may follow.
    if (text[closed] != '(') return 0;
    end = Closed(text, closed, '(', ')');
    if (end == kNone) return waits;
    label = text.substr(begin + 1, closed - begin - 2);
    target = Trimmed(text.substr(closed + 1, end - closed - 2));
    if (const size_t title = target.find_first_of(" \t"); title != kNone) {
      const std::string_view words = Trimmed(target.substr(title));
      if (words.size() < 2 || std::string_view("\"'(").find(words.front()) == kNone) return 0;
      target = target.substr(0, title);
    }
    if (target.starts_with('<') && target.ends_with('>')) target = target.substr(1, target.size() - 2);
  }
  const std::string address = Address(target);
  if (address.empty() || links_.size() >= kMostLinks) return 0;
  links_.push_back(address);
  const auto link = static_cast<uint32_t>(links_.size()) << kLinkShift;
  const uint32_t style = look & ((1U << kLinkShift) - 1);
  if (Trimmed(label).empty()) label = target;
  if (label == target) {
    Text(label, style | kUnderline | link);
    return end - at;
  }
  const char outer = before_;
  before_ = ' ';
  Inline(label, /*whole=*/true, style | kUnderline | link);
  before_ = outer;
  Text(" (", style);
  Text(target, style | kDim | link);
  Text(")", style);
  return end - at;
}

size_t TextWriter::Marked(std::string_view text, size_t at, bool whole, uint32_t look) {
  const char c = text[at];
  const size_t run = RunLength(text, at);
  const size_t open_end = at + run;
  if (open_end == text.size()) return whole ? 0 : kNone;
  const size_t waits = whole || text.size() - at > kLongestMark ? 0 : kNone;
  if (c == '`') {
    for (size_t i = open_end; i < text.size();) {
      if (text[i] != '`') {
        ++i;
        continue;
      }
      const size_t close = RunLength(text, i);
      if (i + close == text.size() && !whole) return kNone;  // The run may go on.
      if (close == run) {
        std::string_view inner = text.substr(open_end, i - open_end);
        if (inner.size() > 2 && inner.front() == ' ' && inner.back() == ' ')
          inner = inner.substr(1, inner.size() - 2);
        // Without colours the marks show it.
        const size_t marks = options_.colours ? 0 : run;
        Text(text.substr(at, marks), look);
        Text(inner, look | kCode);
        Text(text.substr(at, marks), look);
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
  int inside = 0;  // Marks of the same kind that opened behind this one: an end is that of the last one.
  for (size_t i = open_end; i < text.size();) {
    if (text[i] == '\\') {
      i += 2;
      continue;
    }
    if (text[i] == '`' && c != '`') {
      const size_t ticks = RunLength(text, i);
      const size_t close = text.find(std::string(ticks, '`'), i + ticks);
      if (close != kNone) {
        i = close + ticks;
        continue;
      }
    }
    if (text[i] != c) {
      ++i;
      continue;
    }
    const size_t close = RunLength(text, i);
    if (i + close == text.size() && !whole) return kNone;  // The run, and what follows it, may come.
    const bool word_goes_on = i + close < text.size() && IsAlnum(text[i + close]);
    const bool behind_open = std::string_view(" \t\n([{").find(text[i - 1]) != kNone;
    const bool ends = close == run && !behind_open && !(word_goes_on && (c == '_' || run == 1));
    const bool begins = close == run && !ends && !IsAlnum(text[i - 1]) && !IsSpace(text[i + close]);
    if (begins) ++inside;
    if (ends && inside-- == 0) {
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

}  // namespace dsv4::apps
