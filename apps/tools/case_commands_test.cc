// The encode and parse commands on the fixture files and on files that are no case files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "apps/tools/case_file.h"
#include "apps/tools/encode_command.h"
#include "apps/tools/parse_command.h"

namespace dsv4::apps {
namespace {

using chat::JsonValue;

constexpr const char* kEncodingCases = "tests/fixtures/encoding-cases.json";
constexpr const char* kParsingCases = "tests/fixtures/parsing-cases.json";

std::vector<JsonValue> Lines(const std::string& text) {
  std::vector<JsonValue> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const auto json = chat::ReadJson(line, "line");
    EXPECT_TRUE(json.has_value()) << line;
    lines.push_back(json.value_or(JsonValue()));
  }
  return lines;
}

std::string WriteFile(const std::string& text) {
  const std::string path = ::testing::TempDir() + "dsv4_cases_" + std::to_string(::getpid()) + ".json";
  std::ofstream(path) << text;
  return path;
}

// Every line is {"name", key} with the expected value, or {"name", "error"}.
void ExpectLines(const std::vector<JsonValue>& lines, std::string_view key, const char* cases_path,
                 const std::function<const JsonValue*(const JsonValue&)>& expected) {
  const auto cases = ReadCases(cases_path);
  ASSERT_TRUE(cases.has_value()) << cases.error().message();
  ASSERT_EQ(lines.size(), cases->items().size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const JsonValue& test = cases->items()[i];
    ASSERT_EQ(lines[i].members().size(), 2u);
    EXPECT_EQ(*lines[i].Find("name"), *test.Find("name"));
    const JsonValue* want = expected(test);
    const JsonValue* got = lines[i].Find(want == nullptr ? "error" : key);
    ASSERT_NE(got, nullptr) << test.Find("name")->text();
    if (want == nullptr) {
      EXPECT_FALSE(got->text().empty());
    } else {
      EXPECT_EQ(*got, *want) << test.Find("name")->text();
    }
  }
}

TEST(EncodeCommand, WritesOneLinePerCaseInOrder) {
  std::ostringstream out;
  EXPECT_EQ(RunEncodeCommand({kEncodingCases}, out), 0);
  ExpectLines(Lines(out.str()), "rendered", kEncodingCases,
              [](const JsonValue& test) { return test.Find("rendered"); });
  for (const std::string_view separator : {"\u0085", "\u2028", "\u2029"}) {
    EXPECT_EQ(out.str().find(separator), std::string::npos) << "a reader may split the line there";
  }
}

TEST(ParseCommand, StrictAndLenient) {
  std::ostringstream strict;
  EXPECT_EQ(RunParseCommand({kParsingCases, false}, strict), 0);
  ExpectLines(Lines(strict.str()), "message", kParsingCases,
              [](const JsonValue& test) { return test.Find("expected"); });
  std::ostringstream lenient;
  EXPECT_EQ(RunParseCommand({kParsingCases, true}, lenient), 0);
  ExpectLines(Lines(lenient.str()), "message", kParsingCases, [](const JsonValue& test) {
    const JsonValue* expected = test.Find("lenient_expected");
    return expected != nullptr ? expected : test.Find("expected");
  });
}

TEST(CaseCommands, FilesThatAreNoCaseFilesExitWithThree) {
  for (const char* text : {"", "{", "{}", "[1]", "[{}]", "[{\"name\": 1}]", "[] x", "\xff"}) {
    std::ostringstream out;
    EXPECT_EQ(RunEncodeCommand({WriteFile(text)}, out), 3) << text;
    EXPECT_EQ(RunParseCommand({WriteFile(text), true}, out), 3) << text;
    EXPECT_EQ(out.str(), "");
  }
  std::ostringstream out;
  EXPECT_EQ(RunEncodeCommand({"tests/fixtures/none.json"}, out), 3);
}

TEST(CaseCommands, ACaseThatIsWrongIsALineWithItsReason) {
  const auto error = [](const std::string& text, bool parse) {
    std::ostringstream out;
    const std::string path = WriteFile("[{\"name\": \"n\"" + text + "}]");
    EXPECT_EQ(parse ? RunParseCommand({path, true}, out) : RunEncodeCommand({path}, out), 0);
    const std::vector<JsonValue> lines = Lines(out.str());
    if (lines.size() != 1 || lines[0].Find("error") == nullptr) return std::string("no error");
    return lines[0].Find("error")->text();
  };
  EXPECT_EQ(error("", false), "messages: missing");
  EXPECT_EQ(error(R"(, "messages": [{"role": 1}])", false), "messages[0].role: got integer, wanted a string");
  EXPECT_EQ(error(R"(, "messages": [], "tools": 1)", false), "tools: got integer, wanted a list of tools");
  EXPECT_EQ(error(R"(, "messages": [], "options": {"thinking_mode": "both"})", false),
            "options.thinking_mode: got 'both', wanted chat or thinking");
  EXPECT_EQ(error(R"(, "messages": [], "options": {"thinking": true})", false),
            "options.thinking: unknown option");
  EXPECT_EQ(error(R"(, "completion": "x")", true), "mode: got nothing, wanted a string");
  EXPECT_EQ(error(R"(, "completion": "x", "mode": "m")", true), "mode: got 'm', wanted chat or thinking");
}

TEST(EncodeCommand, ContextIsAnOption) {
  std::ostringstream out;
  const std::string path =
      WriteFile(R"([{"name": "n", "messages": [{"role": "user", "content": "b"}], "options":
      {"thinking_mode": "chat", "context": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"}]}}])");
  EXPECT_EQ(RunEncodeCommand({path}, out), 0);
  EXPECT_EQ(out.str(), "{\"name\": \"n\", \"rendered\": \"<｜User｜>b<｜Assistant｜></think>\"}\n");
}

}  // namespace
}  // namespace dsv4::apps
