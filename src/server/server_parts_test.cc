// Pieces of the server that HTTP tests reach only by chance: bounds of memory, constraints token by token, fields.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/json_schema.h"
#include "server/answer_shape.h"
#include "server/api_error.h"
#include "server/call_memory.h"
#include "server/fields.h"
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

TEST(AnswerShape, WithoutWishesThereIsNoConstraint) {
  EXPECT_EQ(*MakeConstraint(Tiny(), {.starts_in_reasoning = true}), nullptr);
  EXPECT_EQ(*MakeConstraint(Tiny(), {.max_reasoning_tokens = 3}), nullptr);  // Nothing to cap.
}

TEST(AnswerShape, ContentOfASchemaComesBehindTheReasoning) {
  const std::vector<int32_t> stop_tokens = {Tiny().special.end_of_sentence};
  const auto constraint = std::move(
      *MakeConstraint(Tiny(), {.starts_in_reasoning = true,
                               .max_reasoning_tokens = 2,
                               .content = *grammar::CompileJsonSchema(R"({"enum":["Paris","Rome"]})"),
                               .stop_tokens = stop_tokens}));
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

TEST(AnswerShape, ForcesTheOpenerOfOneOfTheTools) {
  const auto constraint =
      std::move(*MakeConstraint(Tiny(), {.forced_tools = {"get_time", "get_timetable", "x"}}));
  std::vector<int32_t> forced;
  const std::vector<int32_t> wanted =
      *Tiny().tokenizer.Encode("\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_timetable\">\n");
  for (const int32_t token : wanted) {
    EXPECT_THAT(AllowedOf(*constraint), ::testing::Contains(token));
    EXPECT_LE(AllowedOf(*constraint).size(), 3U);
    constraint->Accept(token);
    forced.push_back(token);
  }
  EXPECT_TRUE(constraint->Allowed().empty());  // The arguments are free.
}

TEST(AnswerShape, NoStopTokenEndsAReasoningBeforeAForcedCall) {
  const int32_t stop = Tiny().special.end_of_sentence;
  const auto constraint = std::move(
      *MakeConstraint(Tiny(), {.starts_in_reasoning = true, .forced_tools = {"x"}, .stop_tokens = {stop}}));
  EXPECT_EQ(AllowedOf(*constraint).size(), 5120U - 1);
  EXPECT_THAT(AllowedOf(*constraint), ::testing::Not(::testing::Contains(stop)));
  constraint->Accept(Tiny().special.think_end);
  EXPECT_EQ(AllowedOf(*constraint).size(), 1U);
}

TEST(AnswerShape, ReasoningEndsAtItsCap) {
  const auto constraint =
      std::move(*MakeConstraint(Tiny(), {.starts_in_reasoning = true, .max_reasoning_tokens = 2}));
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

TEST(ApiError, TheFieldOfAMessage) {
  EXPECT_EQ(FieldOf(InvalidArgument("messages[2].content: got null")), "messages[2].content");
  EXPECT_EQ(FieldOf(InvalidArgument("it went wrong: badly")), "");
  EXPECT_EQ(FieldOf(InvalidArgument("nothing")), "");
  EXPECT_EQ(HttpStatus(ResourceExhausted("x")), 429);
  EXPECT_EQ(HttpStatus(Internal("x")), 500);
}

}  // namespace
}  // namespace dsv4::server
