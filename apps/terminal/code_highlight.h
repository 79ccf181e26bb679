// Which parts of a line of source text are comments, strings, numbers and keywords: enough to read an answer
// by, for many languages at once. Not a parser: what it takes for one thing may be another, and no byte is
// left out or moved.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4::apps {

enum class CodeKind : unsigned char { kPlain, kComment, kString, kNumber, kKeyword, kAdded, kRemoved };

struct CodeSpan {
  CodeKind kind = CodeKind::kPlain;
  std::string_view text;
};

// One block of code, line after line.
class CodeHighlighter {
 public:
  // `language` as behind a fence, in any case: "python", "C++". Unknown and empty: everything is plain.
  explicit CodeHighlighter(std::string_view language);

  // The spans of `line` in order; together they are `line`. Views into it.
  std::vector<CodeSpan> Line(std::string_view line);

 private:
  enum class Family : unsigned char { kNone, kSlash, kHash, kDash, kJson, kDiff };
  size_t EndOfString(std::string_view line, size_t begin);
  bool StartsComment(std::string_view line, size_t at) const;

  Family family_ = Family::kNone;
  bool triple_quotes_ = false;  // The language has them.
  std::string open_;            // Text that ends the comment or string that the last line left open.
  CodeKind open_kind_ = CodeKind::kPlain;
};

}  // namespace dsv4::apps
