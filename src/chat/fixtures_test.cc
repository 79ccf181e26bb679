// The fixtures of the specification: prompts byte for byte, completions strict and lenient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <random>
#include <sstream>

#include "base/utf8.h"
#include "chat/completion_parser.h"
#include "chat/renderer.h"
#include "chat/strict_parser.h"

namespace dsv4::chat {
namespace {

constexpr size_t kNumV41Encoding = 183;

JsonValue ReadFixture(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  Result<JsonValue> json = ReadJson(text.str(), path);
  EXPECT_TRUE(json.has_value()) << json.error().ToString();
  return json.value_or(JsonValue());
}

std::string Text(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr ? "" : value->text();
}

Result<RenderedPrompt> RenderCase(const JsonValue& test, const ChatProfile& profile) {
  const JsonValue& json = *test.Find("options");
  DSV4_ASSIGN_OR_RETURN(std::vector<Message> messages, ParseMessages(*test.Find("messages"), "messages"));
  DSV4_ASSIGN_OR_RETURN(std::vector<JsonValue> tools, ParseTools(*test.Find("tools"), "tools"));
  AttachTools(messages, std::move(tools));
  RenderOptions options;
  options.mode = Text(json, "thinking_mode") == "chat" ? ThinkingMode::kChat : ThinkingMode::kThinking;
  options.drop_thinking = json.Find("drop_thinking")->boolean();
  options.add_bos = json.Find("add_default_bos_token")->boolean();
  if (!json.Find("reasoning_effort")->is_null()) options.effort = Text(json, "reasoning_effort");
  return RenderPrompt(profile, messages, options);
}

// Whether the case's prompt is that of its fixture; `message` says how it is not.
bool IsRight(const JsonValue& test, const ChatProfile& profile, std::string& message) {
  const Result<RenderedPrompt> prompt = RenderCase(test, profile);
  const bool wants_error = test.Find("error") != nullptr;
  message = Text(test, "name") + ": " + (prompt ? prompt->text() : prompt.error().ToString());
  return prompt.has_value() != wants_error && (wants_error || prompt->text() == Text(test, "rendered"));
}

struct Fixtures {
  std::string encoding;
  size_t num_encoding;
  std::string parsing;
  size_t num_parsing;
  std::string parsing_revision;
};

const Fixtures kV4Fixtures = {"tests/fixtures/encoding-cases.json", 56, "tests/fixtures/parsing-cases.json",
                              32, "v4"};
const Fixtures kV41Fixtures = {"tests/fixtures/v41-encoding-cases.json", kNumV41Encoding,
                               "tests/fixtures/v41-parsing-cases.json", 89, "v4.1"};

class EncodingFixtures : public ::testing::TestWithParam<Fixtures> {};

TEST_P(EncodingFixtures, EveryPromptIsEqualByteForByteOrAnError) {
  const JsonValue cases = ReadFixture(GetParam().encoding);
  ASSERT_EQ(cases.items().size(), GetParam().num_encoding);
  for (const JsonValue& test : cases.items()) {
    const auto profile = FindChatProfile(Text(*test.Find("options"), "revision"));
    ASSERT_TRUE(profile) << profile.error().ToString();
    std::string message;
    EXPECT_TRUE(IsRight(test, **profile, message)) << message << "\nwanted " << Text(test, "rendered");
  }
}

ThinkingMode Mode(const JsonValue& test) {
  return Text(test, "mode") == "chat" ? ThinkingMode::kChat : ThinkingMode::kThinking;
}

std::string LenientExpected(const JsonValue& test) {
  const JsonValue* expected = test.Find("lenient_expected");
  return WriteJson(expected != nullptr ? *expected : *test.Find("expected"));
}

// The lenient answer for a text fed in the given pieces.
std::string Streamed(const JsonValue& test, const ChatProfile& profile,
                     const std::vector<std::string_view>& pieces) {
  ParserOptions options;
  options.starts_in_reasoning = Mode(test) == ThinkingMode::kThinking;
  CompletionParser parser(profile, options);
  CompletionCollector collector;
  for (const std::string_view piece : pieces) {
    for (const Delta& delta : parser.Feed(piece)) {
      EXPECT_EQ(FindInvalidUtf8(delta.text), std::string_view::npos) << "a delta ends inside a character";
      collector.Add(delta);
    }
  }
  for (const Delta& delta : parser.Finish(EndCause::kStop)) collector.Add(delta);
  return WriteJson(ToJson(collector.Take().message));
}

class ParsingFixtures : public ::testing::TestWithParam<Fixtures> {
 protected:
  std::string Streamed(const JsonValue& test, const std::vector<std::string_view>& pieces) const {
    return chat::Streamed(test, profile_, pieces);
  }

  const JsonValue cases_ = ReadFixture(GetParam().parsing);
  const ChatProfile& profile_ = *FindChatProfile(GetParam().parsing_revision).value();
};

TEST_P(ParsingFixtures, AreAllThere) { EXPECT_EQ(cases_.items().size(), GetParam().num_parsing); }

// Cases that the lenient parser alone can read say nothing of the strict one.
TEST_P(ParsingFixtures, Strict) {
  for (const JsonValue& test : cases_.items()) {
    SCOPED_TRACE(Text(test, "name"));
    const JsonValue* damage = test.Find("damage");
    if (damage != nullptr && !damage->is_null()) continue;
    const std::string completion =
        Text(test, "completion") + (damage == nullptr ? "" : std::string(profile_.eos));
    const Result<ParsedCompletion> parsed = ParseStrict(profile_, completion, Mode(test));
    if (test.Find("error") != nullptr) {
      EXPECT_FALSE(parsed.has_value());
    } else if (parsed.has_value()) {
      const JsonValue* expected = test.Find("expected");
      EXPECT_EQ(WriteJson(ToJson(*parsed)),
                expected == nullptr ? LenientExpected(test) : WriteJson(*expected));
    } else {
      ADD_FAILURE() << parsed.error().ToString();
    }
  }
}

TEST_P(ParsingFixtures, LenientInOnePiece) {
  for (const JsonValue& test : cases_.items()) {
    SCOPED_TRACE(Text(test, "name"));
    EXPECT_EQ(Streamed(test, {Text(test, "completion")}), LenientExpected(test));
  }
}

TEST_P(ParsingFixtures, LenientCutInTwoAtEveryByte) {
  for (const JsonValue& test : cases_.items()) {
    const std::string completion = Text(test, "completion");
    const std::string_view text = completion;
    const std::string expected = LenientExpected(test);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      ASSERT_EQ(Streamed(test, {text.substr(0, cut), text.substr(cut)}), expected)
          << Text(test, "name") << " at " << cut;
    }
  }
}

TEST_P(ParsingFixtures, LenientByteByByte) {
  for (const JsonValue& test : cases_.items()) {
    const std::string completion = Text(test, "completion");
    std::vector<std::string_view> pieces;
    for (size_t i = 0; i < completion.size(); ++i)
      pieces.push_back(std::string_view(completion).substr(i, 1));
    EXPECT_EQ(Streamed(test, pieces), LenientExpected(test)) << Text(test, "name");
  }
}

TEST_P(ParsingFixtures, LenientCutAtRandom) {
  std::mt19937 random(20260401);
  for (const JsonValue& test : cases_.items()) {
    const std::string completion = Text(test, "completion");
    const std::string expected = LenientExpected(test);
    for (int repeat = 0; repeat < 50; ++repeat) {
      const size_t longest = std::uniform_int_distribution<size_t>(1, 24)(random);
      std::vector<std::string_view> pieces;
      std::string_view rest = completion;
      while (!rest.empty()) {
        const size_t size = std::min(rest.size(), std::uniform_int_distribution<size_t>(0, longest)(random));
        pieces.push_back(rest.substr(0, size));
        rest.remove_prefix(size);
      }
      ASSERT_EQ(Streamed(test, pieces), expected) << Text(test, "name");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(V4, EncodingFixtures, ::testing::Values(kV4Fixtures));
INSTANTIATE_TEST_SUITE_P(V41, EncodingFixtures, ::testing::Values(kV41Fixtures));
INSTANTIATE_TEST_SUITE_P(V4, ParsingFixtures, ::testing::Values(kV4Fixtures));
INSTANTIATE_TEST_SUITE_P(V41, ParsingFixtures, ::testing::Values(kV41Fixtures));

// --- Mistakes of an implementation of V4.1: each fails a case. ---

struct ProfileMistake {
  std::string name;
  void (*make)(ChatProfile& profile);
};

constexpr EffortLevel kPreRelease[] = {{"low", "25"}, {"high", "50"}, {"xhigh", "75"}, {"max", "100"}};
constexpr EffortLevel kHighAsMost[] = {{"low", "50"}, {"high", "75"}, {"xhigh", "100"}, {"max", "100"}};
constexpr EffortLevel kLowAsNone[] = {{"low", "1"}, {"high", "75"}, {"xhigh", "75"}, {"max", "100"}};
constexpr EffortLevel kWithoutXhigh[] = {{"low", "50"}, {"high", "75"}, {"max", "100"}};

const ProfileMistake kMistakes[] = {
    {"EffortsOfThePreRelease", [](ChatProfile& p) { p.efforts = kPreRelease; }},
    {"XhighIsMax", [](ChatProfile& p) { p.efforts = kHighAsMost; }},
    {"LowIsTheLowest", [](ChatProfile& p) { p.efforts = kLowAsNone; }},
    {"NoXhigh", [](ChatProfile& p) { p.efforts = kWithoutXhigh; }},
    {"EffortsOfV4", [](ChatProfile& p) { p.efforts = (*FindChatProfile("v4-0731"))->efforts; }},
    {"EffortLinesAreTexts", [](ChatProfile& p) { p.numeric_efforts = false; }},
    {"NoEffortWhereNoneIsNamed", [](ChatProfile& p) { p.encoder_effort = {}; }},
    {"LowWhereNoneIsNamed", [](ChatProfile& p) { p.encoder_effort = "low"; }},
    {"NoBlankInFrontOfCalls", [](ChatProfile& p) { p.tool_calls = "calls"; }},
    {"BlockHasTheNameOfV4", [](ChatProfile& p) { p.tool_calls = "tool_calls"; }},
    {"BlockHasTheNameOfV4AndABlank", [](ChatProfile& p) { p.tool_calls = " tool_calls"; }},
    {"NoBlankInFrontOfInvoke", [](ChatProfile& p) { p.invoke = "invoke"; }},
    {"NoBlankInFrontOfParameter", [](ChatProfile& p) { p.parameter = "parameter"; }},
    {"TwoBlanks", [](ChatProfile& p) { p.invoke = "  invoke"; }},
    {"NoSystemMarker", [](ChatProfile& p) { p.system_marker = {}; }},
    {"SystemMarkerInAsciiBars", [](ChatProfile& p) { p.system_marker = "<|System|>"; }},
    {"ASystemMessageIsNoTurn", [](ChatProfile& p) { p.system_turns = false; }},
    {"OnlyObjectsAreArguments", [](ChatProfile& p) { p.wraps_arguments = false; }},
    {"AnUnfinishedReasoningIsClosed", [](ChatProfile& p) { p.continues_reasoning = false; }},
    {"AllMembersOfAToolAreShown", [](ChatProfile& p) { p.shows_signatures = false; }},
    {"TheReasoningIsNotClosed", [](ChatProfile& p) { p.think_close = "<think>"; }},
    {"ProfileOfV4", [](ChatProfile& p) { p = **FindChatProfile("v4-0731"); }},
};

class V41Mistakes : public ::testing::TestWithParam<ProfileMistake> {};

TEST_P(V41Mistakes, FailACase) {
  ChatProfile profile = **FindChatProfile("v4.1");
  GetParam().make(profile);
  size_t seen = 0;
  std::string message;
  const JsonValue encoding = ReadFixture(kV41Fixtures.encoding);
  const JsonValue parsing = ReadFixture(kV41Fixtures.parsing);
  for (const JsonValue& test : encoding.items()) seen += IsRight(test, profile, message) ? 0 : 1;
  for (const JsonValue& test : parsing.items())
    seen += Streamed(test, profile, {Text(test, "completion")}) == LenientExpected(test) ? 0 : 1;
  EXPECT_GT(seen, 0u) << "went unnoticed";
  std::cout << "  " << GetParam().name << ": fails " << seen << " cases\n";
}

INSTANTIATE_TEST_SUITE_P(Each, V41Mistakes, ::testing::ValuesIn(kMistakes),
                         [](const auto& mistake) { return mistake.param.name; });

}  // namespace
}  // namespace dsv4::chat
