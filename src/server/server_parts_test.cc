// Pieces of the server that HTTP tests reach only by chance: bounds of memory, constraints token by token, fields.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "grammar/answer_grammar.h"
#include "server/answer_shape.h"
#include "server/api_error.h"
#include "server/call_memory.h"
#include "server/fields.h"
#include "server/http.h"
#include "server/known_fields.h"
#include "server/served_model_testing.h"

namespace dsv4::server {
namespace {

using ::testing::ElementsAre;

const ServedModel& Tiny() {
  static const ServedModel model = MakeTinyServedModel("models/tiny/tokenizer.json", "v4");
  return model;
}

std::vector<int32_t> AllowedOf(sampling::TokenConstraint& constraint) {
  std::vector<int32_t> ids;
  const std::span<const uint64_t> words = constraint.Allowed();
  for (int32_t id = 0; id < static_cast<int32_t>(words.size()) * 64; ++id) {
    if ((words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) ids.push_back(id);
  }
  return ids;
}

const grammar::CallableTool kWeather = {
    .name = "get_weather",
    .parameters =
        R"({"properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"],"additionalProperties":false})",
    .strict = true,
    .label = "tools[0]"};

grammar::AnswerRules Rules(grammar::ContentKind content, std::vector<grammar::CallableTool> tools) {
  return {.starts_in_reasoning = false,
          .content = content,
          .tags = {.marker = "｜DSML｜"},
          .tools = std::move(tools)};
}

std::unique_ptr<sampling::TokenConstraint> Constraint(const grammar::AnswerRules& rules,
                                                      std::optional<int64_t> cap = {}) {
  const auto program = grammar::CompileAnswer(rules);
  EXPECT_TRUE(program) << program.error().ToString();
  return MakeConstraint(Tiny(), {.starts_in_reasoning = rules.starts_in_reasoning,
                                 .max_reasoning_tokens = cap,
                                 .grammar = *program,
                                 .stop_tokens = {Tiny().special.end_of_sentence}});
}

// Feeds the tokens of `text`; the first that is not allowed, spelled, or nothing.
std::string FirstForbidden(sampling::TokenConstraint& constraint, std::string_view text) {
  const std::vector<int32_t> tokens = *Tiny().tokenizer.Encode(text);
  for (const int32_t token : tokens) {
    const std::vector<int32_t> allowed = AllowedOf(constraint);
    if (!std::binary_search(allowed.begin(), allowed.end(), token))
      return std::string(Tiny().tokenizer.TokenBytes(token));
    constraint.Accept(token);
  }
  return "";
}

TEST(AnswerShape, WithoutWishesThereIsNoConstraint) {
  EXPECT_EQ(MakeConstraint(Tiny(), {.starts_in_reasoning = true}), nullptr);
  EXPECT_EQ(MakeConstraint(Tiny(), {.max_reasoning_tokens = 3}), nullptr);  // Nothing to cap.
}

TEST(AnswerShape, ContentOfASchemaComesBehindTheReasoning) {
  const std::vector<int32_t> stop_tokens = {Tiny().special.end_of_sentence};
  const auto constraint = Constraint({.starts_in_reasoning = true,
                                      .content = grammar::ContentKind::kJson,
                                      .schema = R"({"enum":["Paris","Rome"]})"},
                                     2);
  EXPECT_THAT(AllowedOf(*constraint), ::testing::Not(::testing::Contains(stop_tokens[0])));
  constraint->Accept(100);
  constraint->Accept(100);
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(Tiny().special.think_end));
  constraint->Accept(Tiny().special.think_end);
  std::string text;
  while (text.size() < 20) {
    const std::vector<int32_t> allowed = AllowedOf(*constraint);
    ASSERT_FALSE(allowed.empty()) << text;
    if (allowed == stop_tokens) break;
    text += Tiny().tokenizer.TokenBytes(allowed.back());
    constraint->Accept(allowed.back());
  }
  EXPECT_TRUE(text == "\"Paris\"" || text == "\"Rome\"") << text;
}

constexpr std::string_view kCall =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
    "<｜DSML｜parameter name=\"city\" string=\"true\">Bad \"Ems\"\n<b></｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

TEST(AnswerShape, ARequiredCallIsWholeAndOfAnAllowedTool) {
  const auto constraint = Constraint(Rules(grammar::ContentKind::kCall, {kWeather}));
  EXPECT_EQ(FirstForbidden(*constraint, kCall), "");
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(Tiny().special.end_of_sentence));
}

TEST(AnswerShape, WhatACallMustNotSay) {
  const auto refused = [](std::string_view what, std::string_view by, bool parallel = true) {
    grammar::AnswerRules rules = Rules(grammar::ContentKind::kCall, {kWeather});
    rules.parallel_calls = parallel;
    std::string text(kCall);
    text.replace(text.find(what), what.size(), by);
    return FirstForbidden(*Constraint(rules), text);
  };
  EXPECT_NE(refused("get_weather", "get_sun"), "");
  EXPECT_NE(refused(">3<", ">3.5<"), "");
  EXPECT_NE(refused("\"days\" string=\"false\"", "\"days\" string=\"true\""), "");
  EXPECT_NE(refused("\"city\" string=\"true\"", "\"city\" string=\"false\""), "");
  EXPECT_NE(refused("\"days\"", "\"hours\""), "");
  EXPECT_NE(refused("</｜DSML｜tool_calls>", "the end"), "");
  EXPECT_EQ(refused("</｜DSML｜tool_calls>", "<｜DSML｜invoke name=\""), "");
  EXPECT_NE(refused("</｜DSML｜tool_calls>", "<｜DSML｜invoke name=\"", false), "");
}

TEST(AnswerShape, TextMayStandBeforeAStrictCallAndNothingBehindIt) {
  const int32_t stop = Tiny().special.end_of_sentence;
  grammar::AnswerRules rules = Rules(grammar::ContentKind::kText, {kWeather});
  rules.starts_in_reasoning = true;
  const auto constraint = Constraint(rules);
  EXPECT_EQ(FirstForbidden(*constraint, "a <｜DSML｜call?</think>Let me <｜DSML｜see"), "");
  EXPECT_THAT(AllowedOf(*constraint), ::testing::Contains(stop));
  EXPECT_EQ(FirstForbidden(*constraint, kCall), "");
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(stop));
  // A call that interrupts the reasoning is the answer too, and no cap closes what is over.
  const auto interrupted = Constraint(rules, 20);
  EXPECT_EQ(FirstForbidden(*interrupted, kCall), "");
  EXPECT_THAT(AllowedOf(*interrupted), ElementsAre(stop));
}

TEST(AnswerShape, JsonOrACall) {
  grammar::AnswerRules rules = Rules(grammar::ContentKind::kJson, {kWeather});
  rules.schema = R"({"const":[1]})";
  EXPECT_EQ(FirstForbidden(*Constraint(rules), kCall), "");
  EXPECT_EQ(FirstForbidden(*Constraint(rules), "[1]"), "");
  EXPECT_NE(FirstForbidden(*Constraint(rules), "[2]"), "");
}

TEST(AnswerShape, AStopTokenThatIsTextDoesNotEndAnIncompleteAnswer) {
  const int32_t brace = (*Tiny().tokenizer.Encode("["))[0];
  const auto program =
      grammar::CompileAnswer({.content = grammar::ContentKind::kJson, .schema = R"({"enum":[[1],7]})"});
  const auto constraint = MakeConstraint(Tiny(), {.grammar = *program, .stop_tokens = {brace}});
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre((*Tiny().tokenizer.Encode("7"))[0]));
}

TEST(AnswerShape, ReasoningEndsAtItsCap) {
  const auto constraint = MakeConstraint(Tiny(), {.starts_in_reasoning = true, .max_reasoning_tokens = 2});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(constraint->Allowed().empty());
    constraint->Accept(100);
  }
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(Tiny().special.think_end));
  constraint->Accept(Tiny().special.think_end);
  EXPECT_TRUE(constraint->Allowed().empty());
}

chat::Message WithCall(const std::string& id, const std::string& arguments) {
  return {.role = chat::Role::kAssistant, .tool_calls = {{.id = id, .name = "f", .arguments = arguments}}};
}

TEST(CallMemory, KnowsACallByItsIdAsLongAsItMeansTheSame) {
  CallMemory memory;
  memory.Remember({"a"}, {{.name = "f", .arguments = R"({"x": [1,2]})"}}, "\n\nblock");
  std::vector<chat::Message> messages = {WithCall("a", R"({"x":[1, 2]})"), WithCall("a", R"({"x":[1, 3]})"),
                                         WithCall("b", R"({"x": [1,2]})"), WithCall("a", "{")};
  memory.Restore(messages);
  EXPECT_EQ(messages[0].sampled_calls, "\n\nblock");
  for (size_t i = 1; i < messages.size(); ++i) EXPECT_EQ(messages[i].sampled_calls, "") << i;
}

TEST(CallMemory, ForgetsTheLeastRecentlyUsed) {
  CallMemory memory(3000);
  const auto knows = [&](const std::string& id) {
    std::vector<chat::Message> messages = {WithCall(id, "{}")};
    memory.Restore(messages);
    return !messages[0].sampled_calls.empty();
  };
  for (const char* id : {"a", "b"})
    memory.Remember({id}, {{.name = "f", .arguments = "{}"}}, std::string(1000, 'x'));
  EXPECT_TRUE(knows("a"));
  for (const char* id : {"c", "d"})
    memory.Remember({id}, {{.name = "f", .arguments = "{}"}}, std::string(900, 'x'));
  EXPECT_FALSE(knows("b"));
  EXPECT_TRUE(knows("d"));
  memory.Remember({"huge"}, {{.name = "f", .arguments = "{}"}}, std::string(9000, 'x'));
  EXPECT_FALSE(knows("huge"));
}

TEST(Fields, TheFirstMistakeIsKeptAndNamesTheField) {
  const chat::JsonValue json =
      *chat::ReadJson(R"({"a": 1, "b": "x", "c": 99999999999, "d": null, "e": 1e300})", "test");
  Fields fields(json, "outer.");
  int number = 0;
  float real = 0.0F;
  EXPECT_TRUE(fields.Read("a", &number));
  EXPECT_FALSE(fields.Read("d", &number));
  EXPECT_FALSE(fields.Read("missing", &number));
  EXPECT_TRUE(fields.status().ok());
  EXPECT_FALSE(fields.Read("c", &number));
  EXPECT_EQ(fields.status().message(), "outer.c: got 99999999999, wanted an integer");
  EXPECT_FALSE(fields.Read("b", &real));
  EXPECT_EQ(FieldOf(fields.status()), "outer.c");
  EXPECT_EQ(number, 1);
  EXPECT_THAT(fields.Unknown(), ElementsAre("e"));
}

TEST(KnownFields, AreRefusedByNameUnlessTheyAskForNothing) {
  std::string_view before;
  for (const KnownField& field : UnsupportedFields()) {
    EXPECT_LT(before, field.name) << "by name";
    before = field.name;
    const auto refused = [&](std::string_view value) {
      const auto json = *chat::ReadJson(fmt::format(R"({{"{}": {}}})", field.name, value), "test");
      Fields fields(json);
      RefuseUnsupported(fields);
      return fields.status();
    };
    for (const char* nothing : {"null", "\"\"", "[]"}) EXPECT_TRUE(refused(nothing).ok()) << field.name;
    EXPECT_EQ(refused("false").ok(), field.neutral != "true") << field.name;
    if (!field.neutral.empty()) {
      EXPECT_TRUE(refused(field.neutral).ok()) << field.name;
    }
    for (const char* something : {"\"x\"", "[7]", "0.5"}) {
      EXPECT_EQ(FieldOf(refused(something)), field.name) << something;
    }
    // What was asked for is not refused.
    const auto json = *chat::ReadJson(fmt::format(R"({{"{}": 0.5}})", field.name), "test");
    Fields fields(json);
    fields.Find(field.name);
    RefuseUnsupported(fields);
    EXPECT_TRUE(fields.status().ok());
  }
  for (const char* number : {R"({"typical_p": 1.0})", R"({"length_penalty": 1})"}) {
    const auto json = *chat::ReadJson(number, "test");
    Fields fields(json);
    RefuseUnsupported(fields);
    EXPECT_TRUE(fields.status().ok()) << number;
  }
}

TEST(ApiError, TheFieldOfAMessage) {
  EXPECT_EQ(FieldOf(InvalidArgument("messages[2].content: got null")), "messages[2].content");
  EXPECT_EQ(FieldOf(InvalidArgument("it went wrong: badly")), "");
  EXPECT_EQ(FieldOf(InvalidArgument("nothing")), "");
  EXPECT_EQ(HttpStatus(ResourceExhausted("x")), 429);
  EXPECT_EQ(HttpStatus(Internal("x")), 500);
}

}  // namespace
// Says nothing, and hands out how it would be woken.
class SilentReply final : public Reply {
 public:
  explicit SilentReply(std::promise<std::function<void()>>& wake) : wake_(wake) {}
  void Advance(ReplyOutput&) override {}
  void OnProgress(std::function<void()> wake) override { wake_.set_value(std::move(wake)); }

 private:
  std::promise<std::function<void()>>& wake_;
};

TEST(
    HttpServer,
    IsWokenWhileItEndsAndAfterwards) {  // For AddressSanitizer: an engine's thread once held a timer of a server that was gone.
  for (int round = 0; round < 2; ++round) {
    std::promise<std::function<void()>> promise;
    auto server = std::move(*HttpServer::Listen(
        {.port = 0, .drain_timeout = std::chrono::milliseconds(0)},
        [&](const HttpRequest&) { return std::make_unique<SilentReply>(promise); },
        [](const HttpRequest&) { return std::unique_ptr<Reply>(); },
        [](int, std::string_view message) { return std::string(message); }));
    std::thread running([&] { server->Run(false, [] {}); });
    const std::string address = server->address();
    sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)))),
        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    const int client = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    ASSERT_EQ(::send(client, kRequest.data(), kRequest.size(), 0), static_cast<ssize_t>(kRequest.size()));
    const std::function<void()> wake = promise.get_future().get();
    std::atomic<bool> ended = false;
    std::thread engine([&] {
      while (!ended) wake();
    });
    server->Shutdown();
    running.join();
    server.reset();
    ended = true;
    engine.join();
    wake();
    ::close(client);
  }
}

}  // namespace dsv4::server
