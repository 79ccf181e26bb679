// Highlighter of a source line by simple rules: comments, strings, numbers and keywords.
#include "apps/terminal/code_highlight.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/text.h"

namespace dsv4::apps {
namespace {

constexpr auto kSlashLanguages = std::to_array<std::string_view>(
    {"c",      "c++", "cc",         "cpp", "cuda", "cu",         "h",    "hpp",    "cs",   "csharp", "java",
     "js",     "jsx", "javascript", "ts",  "tsx",  "typescript", "go",   "golang", "rust", "rs",     "swift",
     "kotlin", "kt",  "scala",      "php", "css",  "scss",       "dart", "zig",    "glsl", "proto"});
constexpr auto kHashLanguages = std::to_array<std::string_view>(
    {"python", "py",         "python3", "sh",   "bash",   "shell", "zsh", "console", "yaml",
     "yml",    "toml",       "ruby",    "rb",   "perl",   "pl",    "r",   "make",    "makefile",
     "cmake",  "dockerfile", "ini",     "fish", "elixir", "julia", "nix"});
constexpr auto kDashLanguages =
    std::to_array<std::string_view>({"sql", "lua", "haskell", "hs", "ada", "vhdl"});

// Keywords of many languages together: a word that is a keyword in one is seldom a name in another.
constexpr auto kKeywords = std::to_array<std::string_view>(
    {"and", "as", "assert", "async", "auto", "await", "bool", "break", "case", "catch", "char", "class",
     "const", "constexpr", "continue", "def", "default", "del", "delete", "do", "done", "double", "elif",
     "else", "end", "enum", "except", "export", "extends", "false", "fi", "final", "finally", "float", "fn",
     "for", "from", "func", "function", "global", "if", "impl", "implements", "import", "in", "include",
     "int", "interface", "is", "lambda", "let", "local", "long", "match", "mod", "mut", "namespace", "new",
     "nil", "none", "not", "null", "nullptr", "or", "override", "package", "pass", "private", "protected",
     "pub", "public", "raise", "return", "self", "short", "signed", "sizeof", "static", "string", "struct",
     "super", "switch", "template", "then", "this", "throw", "trait", "true", "try", "type", "typedef",
     "typename", "undefined", "union", "unsigned", "use", "using", "var", "virtual", "void", "volatile",
     "where", "while", "with", "yield",
     // SQL
     "alter", "by", "create", "drop", "group", "having", "insert", "into", "join", "key", "left", "limit",
     "on", "order", "primary", "select", "set", "table", "update", "values"});

template <typename List>
bool Has(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool IsWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

CodeHighlighter::CodeHighlighter(std::string_view language) {
  const std::string name = Lowercase(language);
  if (Has(kSlashLanguages, name))
    family_ = Family::kSlash;
  else if (Has(kHashLanguages, name))
    family_ = Family::kHash;
  else if (Has(kDashLanguages, name))
    family_ = Family::kDash;
  else if (name == "json" || name == "jsonl")
    family_ = Family::kJson;
  else if (name == "diff" || name == "patch")
    family_ = Family::kDiff;
  triple_quotes_ = name.starts_with("py");
}

bool CodeHighlighter::StartsComment(std::string_view line, size_t at) const {
  const std::string_view rest = line.substr(at);
  switch (family_) {
    case Family::kSlash:
      return rest.starts_with("//") || rest.starts_with("/*");
    case Family::kHash:  // "$#" and "a#b" are none.
      return rest.front() == '#' && (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t');
    case Family::kDash:
      return rest.starts_with("--");
    default:
      return false;
  }
}

// Behind the string that begins at `begin`; sets open_ where the line ends first and the string may go on.
size_t CodeHighlighter::EndOfString(std::string_view line, size_t begin) {
  const char quote = line[begin];
  const std::string triple(3, quote);
  if (triple_quotes_ && line.substr(begin).starts_with(triple)) {
    const size_t end = line.find(triple, begin + 3);
    if (end != std::string_view::npos) return end + 3;
    open_ = triple;
    open_kind_ = CodeKind::kString;
    return line.size();
  }
  for (size_t at = begin + 1; at < line.size(); ++at) {
    if (line[at] == '\\')
      ++at;
    else if (line[at] == quote)
      return at + 1;
  }
  if (quote == '`') {
    open_ = "`";
    open_kind_ = CodeKind::kString;
    return line.size();
  }
  return begin + 1;  // An apostrophe, or a lifetime.
}

std::vector<CodeSpan> CodeHighlighter::Line(std::string_view line) {
  std::vector<CodeSpan> spans;
  const auto add = [&](CodeKind kind, size_t begin, size_t end) {
    if (end <= begin) return;
    if (kind == CodeKind::kPlain && !spans.empty() && spans.back().kind == kind) {
      spans.back().text = line.substr(static_cast<size_t>(spans.back().text.data() - line.data()),
                                      spans.back().text.size() + (end - begin));
    } else {
      spans.push_back({kind, line.substr(begin, end - begin)});
    }
  };
  if (family_ == Family::kNone || family_ == Family::kDiff) {
    CodeKind kind = CodeKind::kPlain;
    if (family_ == Family::kDiff && line.starts_with('+')) kind = CodeKind::kAdded;
    if (family_ == Family::kDiff && line.starts_with('-')) kind = CodeKind::kRemoved;
    add(kind, 0, line.size());
    return spans;
  }
  size_t at = 0;
  if (!open_.empty()) {
    const size_t end = line.find(open_);
    at = end == std::string_view::npos ? line.size() : end + open_.size();
    add(open_kind_, 0, at);
    if (end != std::string_view::npos) open_.clear();
  }
  while (at < line.size()) {
    const char c = line[at];
    size_t end = at + 1;
    CodeKind kind = CodeKind::kPlain;
    if (StartsComment(line, at)) {
      kind = CodeKind::kComment;
      end = line.size();
      if (line.substr(at).starts_with("/*")) {
        const size_t close = line.find("*/", at + 2);
        if (close != std::string_view::npos) {
          end = close + 2;
        } else {
          open_ = "*/";
          open_kind_ = CodeKind::kComment;
        }
      }
    } else if (c == '"' || c == '\'' || (c == '`' && family_ == Family::kSlash)) {
      end = EndOfString(line, at);
      if (end > at + 1) kind = CodeKind::kString;
    } else if (IsWord(c)) {
      while (end < line.size() && IsWord(line[end])) ++end;
      const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;
      if (number && end < line.size() && line[end] == '.') {
        ++end;
        while (end < line.size() && IsWord(line[end])) ++end;
      }
      const std::string_view word = line.substr(at, end - at);
      if (number)
        kind = CodeKind::kNumber;
      else if (family_ == Family::kDash
                   ? Has(kKeywords, Lowercase(word))
                   : Has(kKeywords, word) || word == "None" || word == "True" || word == "False")
        kind = CodeKind::kKeyword;
    }
    add(kind, at, end);
    at = end;
  }
  return spans;
}

}  // namespace dsv4::apps
