// Tests of the text writer: wrapping, Markdown, code, tables, and hostile bytes.
#include "apps/terminal/text_writer.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace dsv4::apps {
namespace {

std::string Draw(std::string_view text, int columns, bool markdown, size_t piece, bool colours = true) {
  std::string out;
  TextWriter writer({.markdown = markdown,
                     .colours = colours,
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
    if (text.substr(at).starts_with("\x1b]")) {
      at = text.find('\\', at);
    } else if (text[at] == '\x1b') {
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
  for (const char* text : {"2 * 3 * 4 and 3*4*5",
                           "*args and **kwargs",
                           "snake_case_name __init__.py is_a",
                           "a ` b",
                           "100 ~ 200",
                           "\\alpha",
                           "$5 and $6, or $7-$8",
                           "US$5",
                           "[1] and [x](y) [a](javascript:b)",
                           "a < b > c",
                           "hey! [a]",
                           "\\(\\foo_a_b_c\\)",
                           "#hashtag",
                           "-5 degrees",
                           "1.5 times",
                           "**open",
                           "a | b",
                           "5 > 3",
                           "C:\\dir",
                           "f(*args, **kwargs)",
                           "*.c and (*.h"}) {
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
  // An end belongs to the mark that opened last.
  EXPECT_EQ(Drawn("rm *.o *.a but *not* this", 80), "rm *.o *.a but not this");
  EXPECT_EQ(Drawn("f(*a, **k) is **not** _it_", 80), "f(*a, **k) is not it");
  EXPECT_EQ(Drawn("**a **b** c** *d*", 80), "a b c d");
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
  // Bars in formulas part no cells where a row would have too many.
  EXPECT_EQ(Drawn("| $|x|$ | b |\n|---|---|\n| $P(A|B)$ | \\(\\|y\\|\\) |\n| $5 | 6$ |\n|$5|$6|$7|\n"),
            "|x|    │ b\n───────┼────────\nP(A|B) │ |y|\n$5     │ 6$\n$5     │ $6 | $7\n");
  EXPECT_EQ(Drawn("|a|b|c|d|\n|-|-|-|-|\n|1|2|3|4|", 8).find("|a|b|c|d"), 0U);  // No room: as it is.
}

TEST(TextWriter, LinksOpenAndShowTheirAddress) {
  EXPECT_EQ(Draw("[a *b*](https://x.org/c) d", 80, true, 1),
            "\x1b[0;4m\x1b]8;;https://x.org/c\x1b\\a \x1b[0;3;4mb\x1b[0m\x1b]8;;\x1b\\ "
            "(\x1b[0;2m\x1b]8;;https://x.org/c\x1b\\"
            "https://x.org/c\x1b[0m\x1b]8;;\x1b\\) d");
  EXPECT_EQ(
      Drawn("see [the page](http://x.org/a_(b)_c \"t\"), <https://y.org>, ![pic](https://z.org/p.png)!", 80),
      "see the page (http://x.org/a_(b)_c), https://y.org, pic (https://z.org/p.png)!");
  EXPECT_EQ(Drawn("[https://x.org](https://x.org)"), "https://x.org");
  // A row that begins in a link has nothing of it in front.
  EXPECT_NE(Draw("- [one two three](https://x.org)\n", 12, true, 64)
                .find("two\x1b[0m\x1b]8;;\x1b\\\n  \x1b[0;4m\x1b]8;;https://x.org\x1b\\three"),
            std::string::npos)
      << Draw("- [one two three](https://x.org)\n", 12, true, 64);
  EXPECT_EQ(Drawn("| [a](https://x.org) |\n|---|\n| b |\n"), "a (https://x.org)\n─────────────────\nb\n");
  EXPECT_EQ(Draw("[a](https://x.org/\x1b[2J)", 80, true, 64).find("\x1b"), std::string::npos);
  EXPECT_NE(Draw("[a](https://x.org/é)", 80, true, 64).find(";https://x.org/%C3%A9\x1b"), std::string::npos);
}

TEST(TextWriter, FormulasAreWritten) {
  EXPECT_EQ(Drawn("so \\(x_i^2\\), $E = mc^2$ and $$\\frac{1}{2}$$.", 80), "so xᵢ², E = mc² and 1/2.");
  EXPECT_EQ(Drawn("a\n\\[\n\\sqrt{b^2-4ac}\n\\]\n$$ x $$\nb"), "a\n  √(b² - 4ac)\n  x\nb");
  EXPECT_EQ(Drawn("\\begin{align} a &= b \\\\\n c &= d \\end{align}\n"), "  a = b\n  c = d\n");
  // Whatever has no form, and whatever does not end, is as it came.
  for (const char* text : {"\\[ \\binom{a_1}{*b*} \\]\n", "$$\n\\binom{a_1}{a_2}\n$$\nb\n",
                           "\\[\nopen _a_\n\nb\n", "$a_1 b_1", "$$\nx"}) {
    const std::string shown = Drawn(text, 80);
    EXPECT_EQ(shown.substr(0, std::string_view(text).size()), text);
  }
}

TEST(TextWriter, WithoutColoursTheLayoutStays) {
  EXPECT_EQ(Draw("**b** `c`\n> q\n", 40, true, 64, false), "\x1b[0;1mb\x1b[0m `c`\n│ q\n");
  EXPECT_EQ(Draw("| a | b |\n|---|---|\n| 1 | 2 |\n", 40, true, 64, false),
            "\x1b[0;1ma\x1b[0m │ \x1b[0;1mb\x1b[0m\n──┼──\n1 │ 2\n");
  EXPECT_EQ(Draw("```c\nint x;\n```\n", 40, true, 64, false), "```c\nint x;\n```\n");
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
