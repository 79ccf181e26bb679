// Tests of JsonValue: Python's spelling of numbers, big integers, repeated keys, depth and counts.
#include "chat/json_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4::chat {
namespace {

using ::testing::HasSubstr;

std::string Rewritten(std::string_view text, JsonDialect dialect = JsonDialect::kRfc8259) {
  const auto value = ReadJson(text, "test", dialect);
  return value ? WriteJson(*value) : value.error().message();
}

// Expected values are what Python 3.11 prints for json.dumps(json.loads(text), ensure_ascii=False).
TEST(Json, WritesAsPythonDoes) {
  EXPECT_EQ(Rewritten(R"( {"b":[1,2 ,{}],"a":[ ]} )"), R"({"b": [1, 2, {}], "a": []})");
  EXPECT_EQ(Rewritten(R"([true,false,null])"), "[true, false, null]");
  EXPECT_EQ(Rewritten(R"("\/\u0041\u00e9\ud834\udd1e\u2028\u007f\u0000\b\f\n\r\t\"\\")"),
            "\"/Aé𝄞\u2028\x7f\\u0000\\b\\f\\n\\r\\t\\\"\\\\\"");
}

// One string is most of the text, or nearly: what comes out, and every error with its place, is as without the text's memory.
TEST(Json, AStringThatIsMostOfTheTextIsReadAsAnyOther) {
  std::string large;
  while (large.size() < (size_t{3} << 20)) large += R"(some \n text é \u0041\ud834\udd1e\\ and \" so on )";
  const std::string half(large.size() * 3 / 4, 'x');
  for (const std::string& text :
       {"\"" + large + "\"", "{\"a\": [1, {\"b\": \"" + large + "\"}, 2], \"c\": \"d\"}",
        "{\"" + large + "\": 1, \"b\": 2}", "[\"" + large + "\", \"" + half + "\", 3]",
        "[\"" + half + "\", \"" + large + "\"]", "{\"a\": \"" + large + "\", \"a\": 1}",
        "[\"" + large + "\", 01]", "[\"" + large + "\"", "\"" + large, "[\"" + large + "\\q\"]",
        "[\"" + large + "\\u12\", 1]", "[\"" + large + "\\ud800\"]", "[\"" + large + "\n\"]",
        "[\"" + large + "\"]]", "[\"" + large + "\xff\"]"}) {
    const auto expected = ReadJson(text, "test");
    const auto taken = TakeJson(text, "test");
    ASSERT_EQ(taken.has_value(), expected.has_value()) << text.substr(0, 30);
    if (expected)
      EXPECT_TRUE(*taken == *expected) << text.substr(0, 30);
    else
      EXPECT_EQ(taken.error().message(), expected.error().message());
  }
}

TEST(Json, KeepsIntegersOfAnySize) {
  const std::string big = "-1" + std::string(5000, '7');
  EXPECT_EQ(Rewritten(big), big);
  EXPECT_EQ(Rewritten("-0"), "0");
  EXPECT_EQ(Rewritten("18446744073709551616"), "18446744073709551616");
}

TEST(Json, WritesDoublesWithTheShortestDigits) {
  const std::pair<const char*, const char*> cases[] = {{"1.0", "1.0"},
                                                       {"96.50", "96.5"},
                                                       {"-0.0", "-0.0"},
                                                       {"0.1", "0.1"},
                                                       {"1e-7", "1e-07"},
                                                       {"1E21", "1e+21"},
                                                       {"1e3", "1000.0"},
                                                       {"0.0001", "0.0001"},
                                                       {"0.00001", "1e-05"},
                                                       {"1e15", "1000000000000000.0"},
                                                       {"1e16", "1e+16"},
                                                       {"123456789.125e0", "123456789.125"},
                                                       {"1.5e300", "1.5e+300"},
                                                       {"5e-324", "5e-324"},
                                                       {"1e-400", "0.0"},
                                                       {"1e400", "Infinity"},
                                                       {"-1e400", "-Infinity"},
                                                       {"0e5", "0.0"},
                                                       {"1.7976931348623157e308", "1.7976931348623157e+308"},
                                                       {"9007199254740993.0", "9007199254740992.0"},
                                                       {"0.30000000000000004", "0.30000000000000004"},
                                                       {"-1.25e-5", "-1.25e-05"},
                                                       {"100.0e-2", "1.0"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(Rewritten(text), expected) << text;
}

TEST(Json, ARepeatedKeyKeepsItsFirstPlaceAndItsLastValue) {
  EXPECT_EQ(Rewritten(R"({"a":1,"b":2,"a":3,"c":4,"b":5})"), R"({"a": 3, "b": 5, "c": 4})");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "{a:1}",
                           "'a'",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "1e",
                           "-",
                           "nul",
                           "truefalse",
                           "\"\x01\"",
                           "\"\\x\"",
                           "\"\\u12g4\"",
                           "\"\\u123\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\u0041\"",
                           "1 2",
                           "NaN",
                           "Infinity",
                           "-Infinity",
                           "\"",
                           "\"\\",
                           "\xEF\xBB\xBF{}",
                           "[1",
                           "{\"a\"",
                           "{\"a\":"}) {
    EXPECT_FALSE(ReadJson(text, "test").has_value()) << text;
  }
  EXPECT_THAT(Rewritten("[1,2"), HasSubstr("test: not valid JSON: no ',' or ']' after an item at byte 4"));
  EXPECT_THAT(Rewritten("\"\xC3\""), HasSubstr("test: invalid UTF-8 at byte 1"));
}

TEST(Json, PythonDialectReadsTheConstants) {
  EXPECT_EQ(Rewritten("[NaN,Infinity,-Infinity]", JsonDialect::kPython), "[NaN, Infinity, -Infinity]");
}

TEST(Json, NumbersPastTheRangeAreRefusedOnDemand) {
  for (const char* text : {"1e400", "[-1e309]"}) {
    const auto refused = ReadJson(text, "test", JsonDialect::kRfc8259, {.finite = true});
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_THAT(std::string(refused.error().message()), HasSubstr("a number that no double has at byte"));
  }
  EXPECT_TRUE(ReadJson("[1e308,1e-400]", "test", JsonDialect::kRfc8259, {.finite = true}).has_value());
}

TEST(Json, DepthIsBounded) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(Rewritten(nested(kMaxJsonDepth)), nested(kMaxJsonDepth));
  EXPECT_THAT(Rewritten(nested(kMaxJsonDepth + 1)), HasSubstr("nested deeper than 512 levels"));
  EXPECT_FALSE(ReadJson(std::string(1'000'000, '['), "test").has_value());
}

TEST(Json, ValuesAreCounted) {
  const JsonLimits ten = {.max_values = 10};
  const auto read = [&](std::string_view text) { return ReadJson(text, "test", JsonDialect::kRfc8259, ten); };
  EXPECT_TRUE(read("[1,2,3,4,5,6,7,8,9,10]").has_value());
  EXPECT_TRUE(read(R"({"a":[1,2,3],"b":{"c":[[],{}],"d":"","e":0}})").has_value());
  for (const char* text :
       {"[1,2,3,4,5,6,7,8,9,10,11]", R"({"a":[1,2,3],"b":{"c":[[],{}],"d":"","e":0,"f":0}})"}) {
    ASSERT_FALSE(read(text).has_value()) << text;
    EXPECT_THAT(read(text).error().message(), HasSubstr("more than 10 values")) << text;
  }
  std::string many = "[0";
  for (size_t i = 1; i < JsonLimits().max_values; ++i) many += ",0";
  EXPECT_TRUE(ReadJson(many + "]", "test").has_value());
  EXPECT_FALSE(ReadJson(many + ",0]", "test").has_value());
}

TEST(Json, ListsOfTokensArePacked) {
  const std::string_view names[] = {"ids"};
  const JsonLimits limits = {.max_values = 10, .token_lists = names};
  const auto read = [&](std::string_view text) {
    return ReadJson(text, "test", JsonDialect::kRfc8259, limits).value_or(JsonValue::String("error"));
  };
  const JsonValue value = read(R"({"ids": [0, 7 ,2147483647,1,2,3,4,5,6,7,8,9], "other": [1]})");
  ASSERT_EQ(value.Find("ids")->kind(), JsonValue::Kind::kTokens);
  EXPECT_EQ(value.Find("ids")->tokens().size(), 12U);
  EXPECT_EQ(value.Find("ids")->tokens()[2], 2147483647);
  EXPECT_EQ(value.Find("ids")->kind_name(), "array");
  EXPECT_TRUE(value.Find("other")->is_array());
  EXPECT_EQ(WriteJson(value), R"({"ids": [0, 7, 2147483647, 1, 2, 3, 4, 5, 6, 7, 8, 9], "other": [1]})");
  const JsonValue lists = read(R"({"ids": [[1,2],[3],[]]})");
  EXPECT_EQ(lists.Find("ids")->items()[1].tokens(), std::vector<int32_t>{3});
  EXPECT_TRUE(lists.Find("ids")->items()[2].is_array());
  // Anything else is read as ever, and says what is wrong as ever.
  for (const char* list : {"[-1]", "[1.5]", "[2147483648]", "[1,\"x\"]", "[1,[2]]", "[1e2]", "[null]", "[]"})
    EXPECT_TRUE(read(std::string(R"({"ids": )") + list + "}").Find("ids")->is_array()) << list;
  for (const char* list : {"[1,]", "[1", "[01]", "[1 2]", "[+1]", "[1,,2]"})
    EXPECT_TRUE(read(std::string(R"({"ids": )") + list + "}").is_string()) << list;
  EXPECT_TRUE(
      read(R"({"a": {"ids": [1]}})").Find("a")->Find("ids")->is_array());  // Not of the whole document.
}

TEST(Json, TruthIsPythons) {
  for (const char* text : {"null", "false", "0", "-0", "0.0", "-0.0", "\"\"", "[]", "{}"}) {
    EXPECT_FALSE(ReadJson(text, "test")->IsTruthy()) << text;
  }
  for (const char* text : {"true", "1", "0.5", "\"x\"", "[0]", "{\"\": 0}"}) {
    EXPECT_TRUE(ReadJson(text, "test")->IsTruthy()) << text;
  }
}

}  // namespace
}  // namespace dsv4::chat
