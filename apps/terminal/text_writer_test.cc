// Tests of the text writer: wrapping, Markdown, code, tables, and hostile bytes.
#include "apps/terminal/text_writer.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace dsv4::apps {
namespace {

std::string Draw(std::string_view text, int columns, bool markdown, size_t piece) {
  std::string out;
  TextWriter writer({.markdown = markdown,
                     .columns = [columns] { return columns; },
                     .write = [&out](std::string_view each) { out += each; }});
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(at + piece, text.size());
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
    writer.Write(text.substr(at, end - at));
    at = end;
  }
  writer.Finish();
  return out;
}

std::string Plain(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\x1b') {
      at = text.find('m', at);
    } else {
      out += text[at];
    }
  }
  return out;
}

// The same drawing however the text is cut; without its escape sequences.
std::string Drawn(std::string_view text, int columns = 40) {
  const std::string whole = Draw(text, columns, true, text.size());
  for (const size_t piece : {1, 2, 3, 7})
    EXPECT_EQ(Plain(Draw(text, columns, true, piece)), Plain(whole)) << piece;
  return Plain(whole);
}

TEST(TextWriter, WordsWrapWhole) {
  EXPECT_EQ(Draw("the quick brown fox\njumps", 10, false, 3), "the quick\nbrown fox\njumps");
  EXPECT_EQ(Draw("  indented words stay so", 12, false, 1), "  indented\n  words stay\n  so");
  EXPECT_EQ(Draw("a b  c", 80, false, 1), "a b  c");
  EXPECT_EQ(Draw("abcdefghijklm", 5, false, 1), "abcde\nfghij\nklm");
  // Wide characters take two columns, break anywhere, and keep their punctuation.
  EXPECT_EQ(Draw("北京是中国的首都。", 8, false, 3), "北京是中\n国的首\n都。");
}

TEST(TextWriter, MarkdownKeepsWhatIsNone) {
  for (const char* text :
       {"2 * 3 * 4 and 3*4*5", "*args and **kwargs", "snake_case_name __init__.py is_a", "a ` b", "100 ~ 200",
        "\\(x^2\\) \\alpha", "#hashtag", "-5 degrees", "1.5 times", "**open", "a | b", "5 > 3", "C:\\dir"}) {
    EXPECT_EQ(Drawn(text, 80), text);
  }
}

TEST(TextWriter, Markdown) {
  EXPECT_EQ(Drawn("# Title\ntext **bold** *it* `co*de*` ~~no~~ ***all***\n"),
            "Title\ntext bold it co*de* no all\n");
  EXPECT_EQ(Draw("**b**", 40, true, 1), "\x1b[0;1mb\x1b[0m");
  EXPECT_EQ(Drawn("这是**重点**内容"), "这是重点内容");
  EXPECT_EQ(Drawn("- one two three\n- four\n  * nested\n12. twelve\n", 12),
            "• one two\n  three\n• four\n  • nested\n12. twelve\n");
  EXPECT_EQ(Drawn("> quoted words wrap\n", 12), "│ quoted\n│ words wrap\n");
  EXPECT_EQ(Drawn("a\n\n---\nb", 4), "a\n\n────\nb");
  EXPECT_EQ(Drawn("\\*not\\*"), "*not*");
}

TEST(TextWriter, CodeIsNotChanged) {
  const std::string code =
      "```python\ndef f(x):  # **no** emphasis that wraps at forty columns here\n\treturn '| a | b |'\n```\n";
  EXPECT_EQ(Drawn(code), code);
  EXPECT_NE(Draw(code, 40, true, 5).find("\x1b[0;35mdef"), std::string::npos);
  EXPECT_EQ(Drawn("~~~\n```\n~~~\nx"), "~~~\n```\n~~~\nx");
  EXPECT_EQ(Drawn("```c\n/* open\nint */ x"), "```c\n/* open\nint */ x\n");  // Without an end.
}

TEST(TextWriter, Tables) {
  EXPECT_EQ(Drawn("| a | number |\n|---|---:|\n| long cell | 7 |\nend"),
            "a         │ number\n──────────┼───────\nlong cell │      7\nend");
  EXPECT_EQ(Drawn("| a | b |\n|---|---|\n| many words in here | **x** |\n", 16),
            "a           │ b\n────────────┼──\nmany words  │ x\nin here     │ \n");
  EXPECT_EQ(Drawn("| not a table\nx"), "| not a table\nx");
  EXPECT_EQ(Drawn("|a|b|c|d|\n|-|-|-|-|\n|1|2|3|4|", 8).find("|a|b|c|d"), 0U);  // No room: as it is.
}

TEST(TextWriter, AnAnswerCannotDriveTheTerminal) {
  for (const bool markdown : {false, true}) {
    const std::string out =
        Draw("a\x1b[2Jb\x07 \xc2\x9b\n```\n\x1b]0;x\x07\n```\n| \x1b[1m |\n|-|\n", 40, markdown, 64);
    EXPECT_EQ(out.find("\x1b[2J"), std::string::npos);
    EXPECT_EQ(out.find("\x1b]"), std::string::npos);
    EXPECT_EQ(out.find('\x07'), std::string::npos);
    EXPECT_EQ(out.find("\xc2\x9b"), std::string::npos);
  }
}

}  // namespace
}  // namespace dsv4::apps
