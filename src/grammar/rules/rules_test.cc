// Tests of what notations of grammars, regular expressions, choices and structural tags take and refuse, and
// what hostile ones cost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/rules/answer_grammar.h"
#include "grammar/testing.h"

namespace dsv4::grammar {
namespace {

using ::testing::HasSubstr;
using Kind = ContentRule::Kind;

Result<std::shared_ptr<const Program>> Compile(Kind kind, const std::string& text) {
  return CompileAnswer(
      {.content = ContentKind::kRule, .rule = {.kind = kind, .text = text, .label = "rule"}});
}

bool Takes(Kind kind, const std::string& rule, const std::string& text) {
  auto program = Compile(kind, rule);
  EXPECT_TRUE(program.has_value()) << rule << ": " << (program ? "" : program.error().ToString());
  if (!program) return false;
  Matcher matcher(*program, testing::ToyTrie(), {testing::kStop});
  return matcher.AcceptBytes(text).ok() && matcher.IsComplete();
}

std::string ErrorOf(Kind kind, const std::string& rule) {
  const auto program = Compile(kind, rule);
  return program ? "" : program.error().message();
}

struct Case {
  Kind kind;
  std::string rule;
  std::vector<std::string> yes;
  std::vector<std::string> no;
};

const Case kCases[] = {
    {Kind::kRegex, "[a-c]+\\d{2}|x", {"a12", "abc00", "x"}, {"", "a1", "xx", "12"}},
    {Kind::kRegex, "^(ab)*?$", {"", "ab", "abab"}, {"a", "aba"}},
    {Kind::kRegex, "(?i)yes|(?P<no>no)", {"yes", "YES", "nO"}, {"y", "no no"}},
    {Kind::kRegex, "a.b", {"axb", "aéb"}, {"a\nb", "ab"}},
    {Kind::kRegex, "(?s)a.b\\u{1F600}", {"a\nb😀"}, {"a\nb"}},
    {Kind::kChoice, R"(["yes","no","y\"es"])", {"yes", "no", "y\"es"}, {"ye", "yesno", ""}},
    {Kind::kGbnf,
     "root ::= \"a\" b? # comment\nb ::= [0-9]{2,3} | 'x' [^a-y]*\n",
     {"a", "a12", "a123", "axz0"},
     {"a1", "a1234", "axa"}},
    {Kind::kGbnf,
     "root ::= item (\",\" item)*\nitem ::= \"[\" root? \"]\"\n",
     {"[]", "[[],[]],[]"},
     {"[", "[,]", "][]"}},
    // Begins with itself: straight, by way of another, behind something that may be empty, and in a circle without anything between.
    {Kind::kGbnf, "root ::= root \"+\" term | term\nterm ::= [0-9]+", {"1", "1+22+3"}, {"+1", "1+", ""}},
    {Kind::kGbnf,
     "root ::= a \"x\" | \"r\"\na ::= root \"y\" | \"z\" b\nb ::= \"b\"?",
     {"r", "zx", "zbx", "ryx", "zxyx", "zbxyxyx"},
     {"x", "zy", "ry", "zxx"}},
    {Kind::kGbnf,
     "root ::= ws root \"!\" | ws \"a\"\nws ::= \" \"*",
     {"a", " a!", "   a!!"},
     {"!", "a !", ""}},
    {Kind::kGbnf, "root ::= b | \"r\"\nb ::= root | \"b\"", {"r", "b"}, {"rb", ""}},
    {Kind::kGbnf, "root ::= root? root \"a\" | \"b\"", {"b", "ba", "bba", "bbaa"}, {"a", "bb"}},
    {Kind::kGbnf, "root ::= (root | \"x\")* \"y\"", {"y", "xy", "yyxy", "xyxyy"}, {"x", ""}},
    {Kind::kGbnf,
     "root ::= (\"a\"? \"b\"?){3} \"c\"",
     {"c", "abc", "bbbc",
      "ababab"
      "c"},
     {"bbbbc"}},
    {Kind::kGbnf, "root ::= x{2,4}\nx ::= \"(\" x? \")\"", {"()()", "(())()()"}, {"()", "()()()()()"}},
    {Kind::kGbnf, "root ::= \"\\x41\\u00e9\\U0001F600\\n\" .", {"Aé😀\n\n", "Aé😀\né"}, {"Aé😀\n"}},
    {Kind::kGrammar,
     "start: NAME (\",\" NAME)* \"!\"i\nNAME: /[a-z]+/ // names\n",
     {"a!", "ab,c!"},
     {"a", "A!"}},
    {Kind::kLark,
     "?start: expr\nexpr: expr \"+\" term -> add\n    | term\nterm: NUMBER | \"(\" expr \")\"\n"
     "%import common.NUMBER\n%import common (WS_INLINE, CNAME)\n%ignore WS_INLINE\n",
     {"1", " 1 + 2.5e3 + (4 )", "((1))"},
     {"1+", "()", "1 1", ""}},
    {Kind::kLark,
     "start: [\"-\"] DIGIT ~ 2..3 X?\nDIGIT: \"0\"..\"9\"\nX.2: /x\\/y/i",
     {"12", "-123X/y"},
     {"1", "1234"}},
    {Kind::kLark,
     "start: %json {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": "
     "[\"a\"]} \";\"",
     {"{\"a\":1};", "{\"a\": 12 };"},
     {"{};", "{\"a\":1}"}},
    {Kind::kLark,
     "start: begin_patch hunk+ end_patch\nbegin_patch: \"*** Begin Patch\" LF\nend_patch: \"*** End Patch\" "
     "LF?\n\n"
     "hunk: add_hunk | delete_hunk\nadd_hunk: \"*** Add File: \" filename LF add_line+\n"
     "delete_hunk: \"*** Delete File: \" filename LF\nfilename: /(.+)/\nadd_line: \"+\" /(.*)/ LF -> "
     "line\n\n%import common.LF\n",
     {"*** Begin Patch\n*** Add File: a.txt\n+x\n+\n*** Delete File: b c\n*** End Patch",
      "*** Begin Patch\n*** Add File: a.txt\n+x\r\n+\u2028\n*** End Patch"},
     {"*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: \n+x\n*** End Patch"}},
    {Kind::kStructuralTag,
     R"({"structures":[{"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f="]})",
     {"", "hello < f", "x<f=a>12</f>y<f=a>3</f>", "a <f"},
     {"<f=b>", "<f=a>x</f>", "<f="}},
    {Kind::kStructuralTag,
     R"({"type":"structural_tag","format":{"type":"sequence","elements":[{"type":"tag","begin":"<t>","content":{"type":"any_text"},"end":["</t>","</u>"]},
        {"type":"or","elements":[{"type":"const_string","value":"ok"},{"type":"regex","pattern":"[0-9]+"},{"type":"grammar","grammar":"root ::= \"g\" root | \"h\""}]}]}})",
     {"<t>a b</t>ok", "<t></u>12", "<t></t>ggh"},
     {"<t>ok", "<t></t>", "<t></t></u>ok"}},
    {Kind::kStructuralTag,
     R"({"format":{"type":"triggered_tags","triggers":["<"],"at_least_one":true,"stop_after_first":true,"tags":[{"begin":"<a>","content":{"type":"json_schema","json_schema":{"enum":[1]}},"end":"</a>"}]}})",
     {"<a>1</a>", "hi <a>1</a>"},
     {"hi", "<a>1</a>x", "<b>"}},
    {Kind::kStructuralTag,
     R"({"format":{"type":"tags_with_separator","separator":",","tags":[{"type":"tag","begin":"[","content":{"type":"repeat","min":1,"max":2,"content":{"type":"const_string","value":"x"}},"end":"]"}]}})",
     {"", "[x]", "[x],[xx]"},
     {"[]", "[x][x]", "[xxx]"}},
    {Kind::kStructuralTag,
     R"({"format":{"type":"dispatch","rules":[["!",{"type":"star","content":{"type":"const_string","value":"a"}}]],"loop":false,"excludes":["z"]}})",
     {"", "hi", "hi!aa"},
     {"z", "!b"}},
};

TEST(Rules, TakeWhatTheySayAndNothingElse) {
  for (const Case& one : kCases) {
    for (const std::string& text : one.yes)
      EXPECT_TRUE(Takes(one.kind, one.rule, text)) << one.rule << "\n" << text;
    for (const std::string& text : one.no)
      EXPECT_FALSE(Takes(one.kind, one.rule, text)) << one.rule << "\n" << text;
  }
}

// A token is allowed exactly if Accept takes it, and every walk can end.
TEST(Rules, MasksAreWhatAcceptTakes) {
  std::mt19937 random(7);
  for (const Case& one : kCases) {
    const auto program = Compile(one.kind, one.rule);
    ASSERT_TRUE(program.has_value()) << one.rule;
    for (int run = 0; run < 3; ++run) {
      Matcher matcher(*program, testing::ToyTrie(), {testing::kStop});
      TokenMask mask(matcher.num_ids());
      for (int step = 0; step < 24 && !matcher.IsFinished(); ++step) {
        matcher.Mask(mask);
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < matcher.num_ids(); ++id) {
          Matcher copy = matcher;
          ASSERT_EQ(copy.Accept(id).ok(), mask.IsAllowed(id)) << one.rule << " token " << id;
          if (mask.IsAllowed(id)) allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty()) << one.rule;
        ASSERT_TRUE(matcher.Accept(allowed[random() % allowed.size()]).ok());
      }
    }
  }
}

TEST(Rules, MistakesNameTheirPlace) {
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= \"a\"\nx ::= y\n"),
              HasSubstr("rule: grammar, line 2: no rule is named \"y\""));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "a ::= \"a\""), HasSubstr("there is no rule \"root\""));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= \"a"), HasSubstr("line 1: a literal is not closed"));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= [a-"), HasSubstr("a class is not closed"));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= (\"a\""), HasSubstr("a group is not closed"));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= \"a\"{3,2}"), HasSubstr("ends before it begins"));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= <think>"), HasSubstr("tokens cannot be asked for"));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= \"a\"\nroot ::= \"b\""),
              HasSubstr("a second rule is named \"root\""));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= \"(\" root \")\""), HasSubstr("rule: no text satisfies it"));
  EXPECT_THAT(ErrorOf(Kind::kGbnf, "root ::= \"a\" )"), HasSubstr("')' stands where none can"));
  EXPECT_THAT(ErrorOf(Kind::kLark, "start: a\n"), HasSubstr("line 1: no rule is named \"a\""));
  EXPECT_THAT(ErrorOf(Kind::kLark, "start: /a(?=b)/\n"), HasSubstr("line 1: pattern, character"));
  EXPECT_THAT(ErrorOf(Kind::kLark, "%import python.NAME\nstart: NAME"),
              HasSubstr("the module \"python\" is not supported"));
  EXPECT_THAT(ErrorOf(Kind::kLark, "%import common.NONE\nstart: NONE"), HasSubstr("common has no \"NONE\""));
  EXPECT_THAT(ErrorOf(Kind::kLark, "%declare X\nstart: X"), HasSubstr("%declare is not supported"));
  EXPECT_THAT(ErrorOf(Kind::kLark, "start: \"a\" )\n"), HasSubstr("')' stands where none can"));
  EXPECT_THAT(ErrorOf(Kind::kRegex, "a(?!b)"), HasSubstr("rule: pattern, character"));
  EXPECT_THAT(ErrorOf(Kind::kRegex, "a++"), HasSubstr("possessive"));
  EXPECT_THAT(ErrorOf(Kind::kRegex, "[]"), HasSubstr("rule: no text satisfies it"));
  EXPECT_THAT(ErrorOf(Kind::kChoice, "[]"), HasSubstr("wanted a list of texts"));
  EXPECT_THAT(ErrorOf(Kind::kChoice, "[1]"), HasSubstr("wanted texts, got number"));
  EXPECT_THAT(ErrorOf(Kind::kStructuralTag, R"({"format":{"type":"token","token":3}})"),
              HasSubstr("structural tag, /format/type: \"token\" is not supported"));
  EXPECT_THAT(ErrorOf(Kind::kStructuralTag, R"({"format":{"type":"any_text","max_tokens":3}})"),
              HasSubstr("/format/max_tokens: is not supported"));
  EXPECT_THAT(ErrorOf(Kind::kStructuralTag,
                      R"({"structures":[{"begin":"<a","schema":{},"end":""}],"triggers":["x"]})"),
              HasSubstr("begins with none of the triggers"));
}

std::string Many(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// Each of these is refused, or compiled, within bounds; a mask comes soon too.
TEST(Rules, HostileOnesAreBounded) {
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 3000; ++i)
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " | \"(\" root \")\"\n";
  chain += "r3000 ::= \"x\"?\n";
  std::string circle = "root ::= c0\n";
  for (int i = 0; i < 90; ++i)
    circle += "c" + std::to_string(i) + " ::= c" + std::to_string((i + 1) % 90) + " \"x\" | c" +
              std::to_string((i * 7) % 90) + " | \"y\"\n";
  std::string wide_circle = circle;
  for (int i = 0; i < 200; ++i)
    wide_circle += "d" + std::to_string(i) + " ::= d" + std::to_string((i + 1) % 200) + " \"x\"\n";
  std::string choices = "[\"\"";
  for (int i = 0; i < 20000; ++i) choices += ",\"c" + std::to_string(i * 7919) + "\"";
  const std::pair<Kind, std::string> hostile[] = {
      {Kind::kGbnf, "root ::= \"a\" | " + Many(120, "(") + "\"b\"" + Many(120, ")")},
      {Kind::kGbnf, "root ::= x{10000}\nx ::= y{10000}\ny ::= \"(\" x? \")\""},
      {Kind::kGbnf, "root ::= (((\"a\"{1000}){1000}){1000}){1000}"},
      {Kind::kGbnf, "root ::= \"a\"{10000}{10000}"},
      {Kind::kGbnf, "root ::= [ab]* \"a\" [ab]{24}"},
      {Kind::kGbnf, "root ::= (root root root | \"a\")*"},
      {Kind::kGbnf, "root ::= " + Many(5000, "root? ") + "\"a\""},
      {Kind::kGbnf, "root ::= " + Many(20000, "a? ") + "\na ::= \"(\" root \")\""},
      {Kind::kGbnf, chain},
      {Kind::kGbnf, circle},
      {Kind::kGbnf, wide_circle},
      {Kind::kGbnf, Many(30000, "root ::= ")},
      {Kind::kGbnf, "root ::= " + Many(3000, "[^a] ") + Many(40000, ". ")},
      {Kind::kGbnf, std::string(300000, 'a')},
      {Kind::kLark, "start: " + Many(100000, "[")},
      {Kind::kLark, "start: " + Many(4000, "\n  | x \"a\"") + "\nx: \"(\" start \")\"\n%ignore / /"},
      {Kind::kRegex, Many(60, "(a|") + "b" + Many(60, ")*")},
      {Kind::kRegex, "(.*a){20}.{200}"},
      {Kind::kChoice, choices + "]"},
      {Kind::kStructuralTag, Many(3000, "[") + Many(3000, "]")},
      {Kind::kStructuralTag,
       R"({"format":)" + Many(100, R"({"type":"star","content":)") + "1" + Many(101, "}")},
  };
  for (const auto& [kind, rule] : hostile) {
    const auto start = std::chrono::steady_clock::now();
    const auto program = Compile(kind, rule);
    const auto made = std::chrono::steady_clock::now();
    size_t allowed = 1;
    if (program) {
      Matcher matcher(*program, testing::ToyTrie(), {testing::kStop});
      TokenMask mask(matcher.num_ids());
      for (int i = 0; i < 4 && allowed > 0 && !matcher.IsFinished(); ++i) {
        matcher.Mask(mask);
        allowed = static_cast<size_t>(mask.Count());
        for (TokenId id = 0; id < matcher.num_ids(); ++id) {
          if (mask.IsAllowed(id) && matcher.Accept(id).ok()) break;
        }
      }
    } else {
      EXPECT_FALSE(program.error().message().empty());
    }
    EXPECT_GT(allowed, 0U);
    const auto seconds = [](auto duration) { return std::chrono::duration<double>(duration).count(); };
    std::printf("%-40.40s %s, compiled in %.2f s, masks in %.2f s\n", rule.c_str(),
                program ? "taken" : program.error().message().substr(0, 90).c_str(), seconds(made - start),
                seconds(std::chrono::steady_clock::now() - made));
    EXPECT_LT(seconds(made - start), 30) << rule.substr(0, 60);
  }
}

// Questions of drafts for speculation: which text must come, and how much of a guess may.
TEST(Rules, TextThatMustComeIsForcedAndGuessesAreCut) {
  const auto program = Compile(Kind::kGbnf, "root ::= \"the \" n \" end\"\nn ::= n [0-9] | [0-9]");
  ASSERT_TRUE(program.has_value());
  Matcher matcher(*program, testing::ToyTrie(), {testing::kStop});
  EXPECT_EQ(matcher.ForcedBytes(), "the ");
  std::string spelled;
  for (const TokenId id : matcher.ForcedTokens(16)) {
    const auto bytes = testing::ToyTrie()->BytesOf(id);
    spelled.append(bytes.begin(), bytes.end());
  }
  EXPECT_EQ(spelled, "the ");
  ASSERT_TRUE(matcher.AcceptBytes("the 4").ok());
  EXPECT_EQ(matcher.ForcedBytes(), "");  // Another digit, or a blank.
  ASSERT_TRUE(matcher.AcceptBytes(" ").ok());
  EXPECT_EQ(matcher.ForcedBytes(), "end");
  const auto id_of = [](std::string_view text) { return testing::ToyTrie()->LongestPrefix(text); };
  const std::vector<TokenId> guess = {id_of("e"), id_of("n"), id_of("x"), id_of("d")};
  EXPECT_EQ(matcher.CountAllowed(guess), 2U);
  EXPECT_EQ(matcher.ForcedBytes(), "end");  // Nothing was accepted.
}

// A custom tool: the one parameter is a text of the rule.
TEST(Rules, TextsOfCalls) {
  const auto program = CompileAnswer(
      {.content = ContentKind::kCall,
       .tags = {.marker = "｜DSML｜"},
       .tools = {
           {.name = "sql",
            .text = CallableTool::Text{
                "input",
                {.kind = Kind::kLark, .text = "start: \"SELECT \" /.+/ \";\"", .label = "tools[0]"}}}}});
  ASSERT_TRUE(program.has_value()) << program.error().ToString();
  const auto call = [](const std::string& input) {
    return "\n\n<\xF9tool_calls>\n<\xF9invoke name=\"sql\">\n<\xF9parameter name=\"input\" string=\"true\">" +
           input + "</\xF9parameter>\n</\xF9invoke>\n</\xF9tool_calls>";
  };
  const auto takes = [&](const std::string& text) {
    Matcher matcher(*program, testing::ToyTrie(), {testing::kStop});
    return matcher.AcceptBytes(text).ok() && matcher.IsComplete();
  };
  EXPECT_TRUE(takes(call("SELECT 1 < 2;")));
  EXPECT_FALSE(takes(call("DROP x;")));
  EXPECT_FALSE(takes(call("SELECT </｜DSML｜parameter> ;")));
}

// Counts that no automaton has but by its states, which would be too many.
TEST(RulesTest, LargeCountsBesideAndInsideEachOther) {
  const auto text = [](std::initializer_list<std::pair<std::string, int>> parts) {
    std::string all;
    for (const auto& [part, count] : parts)
      for (int i = 0; i < count; ++i) all += part;
    return all;
  };
  const std::string ends = "[a-z]{300,60000}[a-z0-9]";
  EXPECT_TRUE(Takes(Kind::kRegex, ends, text({{"a", 300}, {"9", 1}})));
  EXPECT_TRUE(Takes(Kind::kRegex, ends, text({{"a", 301}})));
  EXPECT_FALSE(Takes(Kind::kRegex, ends, text({{"a", 300}})));
  EXPECT_FALSE(Takes(Kind::kRegex, ends, text({{"a", 299}, {"9", 1}})));
  const std::string names = "(?:[a-z]{1,200}\\.){300,500}[a-z]{2,63}";
  EXPECT_TRUE(Takes(Kind::kRegex, names, text({{"ab.", 300}, {"c", 2}})));
  EXPECT_FALSE(Takes(Kind::kRegex, names, text({{"ab.", 299}, {"c", 2}})));
  EXPECT_FALSE(Takes(Kind::kRegex, names, text({{"ab.", 501}, {"c", 2}})));
  EXPECT_FALSE(Takes(Kind::kRegex, names, text({{"ab.", 300}, {"c", 64}})));
  const std::string two = "[a-x]{250,50000}x{300,9000}";
  EXPECT_TRUE(Takes(Kind::kRegex, two, text({{"a", 250}, {"x", 300}})));
  EXPECT_FALSE(Takes(Kind::kRegex, two, text({{"a", 249}, {"x", 300}})));
  EXPECT_TRUE(Takes(Kind::kRegex, two, text({{"a", 249}, {"x", 301}})));
  EXPECT_FALSE(Takes(Kind::kRegex, two, text({{"a", 300}, {"x", 299}})));
  const std::string inside = "((ab{1,300}){200,1000}c){1,300}";
  EXPECT_TRUE(Takes(Kind::kRegex, inside, text({{"abb", 200}, {"c", 1}, {"ab", 999}, {"c", 1}})));
  EXPECT_FALSE(Takes(Kind::kRegex, inside, text({{"abb", 199}, {"c", 1}})));
  EXPECT_TRUE(Takes(Kind::kGbnf, "root ::= [a-z]{1,50000} (\"x\"){300,9000}", text({{"a", 1}, {"x", 300}})));
}

}  // namespace
}  // namespace dsv4::grammar
