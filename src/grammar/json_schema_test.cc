// Tests of JSON Schema grammars: types, members, arrays, strings, numbers, branches, references, depth and
// errors.
#include "grammar/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "grammar/rules/content_rule.h"
#include "grammar/testing.h"

namespace dsv4::grammar {
namespace {

using testing::Accepts;
using ::testing::HasSubstr;

struct Case {
  std::string_view schema;
  std::vector<std::string_view> good;
  std::vector<std::string_view> bad;
};

void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    for (const std::string_view text : c.good)
      EXPECT_TRUE(Accepts(c.schema, text)) << c.schema << ' ' << text;
    for (const std::string_view text : c.bad)
      EXPECT_FALSE(Accepts(c.schema, text)) << c.schema << ' ' << text;
  }
}

TEST(JsonSchema, AnyValueIsAnyJson) {
  Check({{"{}",
          {R"({"a":[1,-2.5e3,true,false,null,"x"],"b":{}})", "[]", "0", R"("é\n\u00e9\ud83d\ude00")",
           "[ 1,\n  2 ]", "{\n\t\"a\": 1\n}"},
          {"", "01", "1.", "+1", ".5", "nul", "[1,]", R"({"a":})", "{a:1}", R"("\x")", R"("\ud83d")",
           R"("\ude00")", "\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"a\nb\"", "[1 2]", "1 ", " 1"}},
         {"true", {"3"}, {"x"}},
         {R"({"type":"object"})", {"{}", R"({"a":{"b":[]}})"}, {"[]", "1"}}});
}

TEST(JsonSchema, Types) {
  Check({{R"({"type":"integer"})",
          {"0", "-7", "123456789012345678"},
          {"1.0", "1e3", "1234567890123456789", "\"1\""}},
         {R"({"type":"number"})", {"0", "-7.25", "1e9", "1.5E-10"}, {"1e100", "NaN", "-"}},
         {R"({"type":["string","null"]})", {"null", "\"\""}, {"1", "true"}},
         {R"({"type":"boolean"})", {"true", "false"}, {"null"}}});
}

TEST(JsonSchema, ObjectsTakeTheirMembersInOrder) {
  Check(
      {{R"({"properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"}},"required":["b"],"additionalProperties":false})",
        {R"({"b":1})", R"({"a":1,"b":2})", R"({"b":2,"c":3})", R"({"a":1, "b": 2,"c":3})"},
        {"{}", R"({"a":1})", R"({"b":1,"a":2})", R"({"b":1,"b":2})", R"({"b":1,})", R"({"b":1,"d":2})",
         R"({,"b":1})"}},
       {R"({"properties":{"a":{"type":"integer"}}})",
        {"{}", R"({"a":1})"},
        {R"({"a":1,"z":"x"})", R"({"z":1})"}},
       {R"({"properties":{"a":{"type":"integer"}},"additionalProperties":true})",
        {"{}", R"({"a":1})", R"({"a":1,"z":"x"})", R"({"z":[],"y":null})", R"({"ab":1,"":2})"},
        {R"({"a":"x"})", R"({"z":1,"a":2})", R"({"\u0061":"x"})"}},
       {R"({"additionalProperties":{"type":"boolean"},"required":["k"]})",
        {R"({"k":true})", R"({"k":true,"l":false})"},
        {"{}", R"({"k":1})", R"({"k":true,"l":1})"}},
       {R"({"properties":{"a\"b/\n":{"const":1}},"additionalProperties":false})",
        {R"({"a\"b/\n":1})", "{}"},
        {R"({"a":1})"}},
       {R"({"properties":{"a":false},"additionalProperties":{"const":1}})",
        {"{}", R"({"b":1})"},
        {R"({"a":1})"}}});
}

TEST(JsonSchema, ArraysCount) {
  Check({{R"({"items":{"type":"integer"},"minItems":1,"maxItems":3})",
          {"[1]", "[1,2]", "[1, 2,3]"},
          {"[]", "[1,2,3,4]", "[\"\"]"}},
         {R"({"type":"array","minItems":2})", {"[1,\"a\"]", "[1,2,3,4]"}, {"[]", "[1]"}},
         {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
         {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":2})",
          {"[1,\"a\"]"},
          {"[1]", "[1,\"a\",2]", "[\"a\",1]"}},
         {R"({"prefixItems":[{"type":"integer"}],"items":{"type":"string"}})",
          {"[]", "[1]", "[1,\"a\",\"b\"]"},
          {"[\"a\"]", "[1,2]"}},
         {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"maxItems":1})",
          {"[]", "[1]"},
          {"[1,\"a\"]"}}});
}

TEST(JsonSchema, Strings) {
  Check({{R"({"minLength":2,"maxLength":3})",
          {"\"ab\"", "\"äöü\"", R"("\"\\")", R"("\n\u0000")"},
          {"\"a\"", "\"abcd\"", R"("\u0061b")"}},
         {R"({"minLength":2})", {"\"ab\"", "\"abcdefgh\""}, {"\"a\"", "\"\""}},
         {R"({"pattern":"^a+b?$"})", {"\"a\"", "\"aab\""}, {"\"b\"", "\"xa\"", "\"abx\""}},
         {R"({"pattern":"b"})", {"\"b\"", "\"abc\""}, {"\"a\""}},
         {R"({"pattern":"^a|b$"})", {"\"ax\"", "\"xb\""}, {"\"xa\"", "\"bx\""}},
         {R"({"pattern":"^(?:ab|[^\\d\\s]{2}){1,2}$"})",
          {"\"ab\"", "\"ab--\"", "\"éé\""},
          {"\"a\"", "\"a1\"", "\"ababab\""}},
         {R"({"pattern":"^[\\u00e9-\\u4e00\\]-]$"})",
          {"\"é\"", "\"]\"", "\"-\"", "\"一\""},
          {"\"è\"", "\"丁\""}},
         {R"({"pattern":"^.\"\\\\$"})", {R"("x\"\\")"}, {R"("\n\"\\")"}},
         {R"({"pattern":"^x*$","minLength":2,"maxLength":3})",
          {"\"xx\"", "\"xxx\""},
          {"\"x\"", "\"xxxx\"", "\"xy\""}},
         {R"({"format":"date"})",
          {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""},
          {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"2024-1-1\"",
           "\"0000-01-01\""}},
         {R"({"format":"date-time"})",
          {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.123+05:30\""},
          {"\"2024-01-01\"", "\"2024-01-01T24:00:00Z\"", "\"2024-01-01T00:00:00\""}},
         {R"({"format":"uuid"})",
          {"\"123e4567-e89b-12d3-a456-426614174000\""},
          {"\"123e4567e89b12d3a456426614174000\""}},
         {R"({"format":"ipv4"})", {"\"255.0.10.199\""}, {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
         {R"({"format":"email"})", {"\"a.b+c@example.org\""}, {"\"a@b\"", "\"@b.c\"", "\"a b@c.d\""}}});
}

TEST(JsonSchema, NumbersBetweenBounds) {
  Check(
      {{R"({"type":"integer","minimum":-12,"maximum":305})",
        {"-12", "-9", "0", "7", "99", "299", "305"},
        {"-13", "306", "310", "1000", "-20", "-100"}},
       {R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":10})",
        {"1", "9"},
        {"0", "10", "-0", "-1"}},
       {R"({"type":"integer","minimum":1.5,"maximum":3.5})", {"2", "3"}, {"1", "4"}},
       {R"({"type":"integer","maximum":-5})", {"-5", "-123"}, {"-4", "0", "5"}},
       {R"({"minimum":0,"maximum":1})", {"0", "1", "0.5", "1.0", "0.000"}, {"1.01", "-0.1", "2"}},
       {R"({"exclusiveMinimum":0.25,"maximum":12.5})",
        {"0.2501", "0.3", "1", "12.5", "12.50", "12.49", "9.99"},
        {"0.25", "0.250", "0.2", "0", "12.51", "13"}},
       {R"({"minimum":-2.5,"exclusiveMaximum":-0.05})",
        {"-2.5", "-1", "-0.06", "-0.051"},
        {"-2.51", "-0.05", "-0.050", "-0.049", "-0", "0", "-3"}},
       {R"({"type":"number","exclusiveMaximum":0})", {"-1", "-0.001"}, {"0", "-0", "-0.0", "1"}},
       {R"({"minimum":1e2,"maximum":1.5e2})", {"100", "150", "149.9"}, {"99", "151"}},
       {R"({"minimum":3,"exclusiveMinimum":2,"maximum":9,"exclusiveMaximum":9})", {"3", "8.9"}, {"2.5", "9"}},
       {R"({"type":"integer","maximum":1e30})", {"5"}, {}}});
}

TEST(JsonSchema, ValuesAndBranches) {
  Check(
      {{R"({"enum":["a",1,null,[1,{"x":2}],1.5]})",
        {"\"a\"", "1", "null", "[1,{\"x\":2}]", "1.5"},
        {"\"b\"", "2", "[1]"}},
       {R"({"const":"é\n"})", {R"("é\n")"}, {"\"x\""}},
       {R"({"enum":[18446744073709551615,-9223372036854775808]})",
        {"18446744073709551615", "-9223372036854775808"},
        {"18446744073709551614"}},
       {R"({"enum":["a",1,"bb"],"type":"string"})", {"\"a\"", "\"bb\""}, {"1"}},
       {R"({"enum":["a","bb","ccc"],"minLength":2})", {"\"bb\"", "\"ccc\""}, {"\"a\""}},
       {R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"string"}}]})",
        {"1", "[\"a\"]"},
        {"[1]", "\"a\""}},
       {R"({"oneOf":[{"type":"integer"},{"type":"null"}]})", {"1", "null"}, {"true"}},
       {R"({"type":"object","properties":{"k":{"enum":["a","b"]}},"required":["k"],"anyOf":[{"properties":{"x":{"type":"integer"}},"required":["x"]},{"properties":{"y":{"type":"integer"}},"required":["y"]}]})",
        {R"({"k":"a","x":1})", R"({"k":"b","y":1})"},
        {R"({"k":"a"})", R"({"k":"c","x":1})"}},
       {R"({"allOf":[{"properties":{"a":{"minimum":1}},"required":["a"]},{"properties":{"a":{"maximum":5},"b":{"type":"null"}},"required":["b"]}]})",
        {R"({"a":3,"b":null})"},
        {R"({"a":0,"b":null})", R"({"a":6,"b":null})", R"({"a":3})"}},
       {R"({"allOf":[{"enum":[1,2,3]},{"enum":[2,3,4]}]})", {"2", "3"}, {"1", "4"}},
       {R"({"allOf":[{"type":"number"},{"type":["integer","string"]}]})", {"2"}, {"2.5", "\"a\""}}});
}

TEST(JsonSchema, ReferencesAndRecursion) {
  constexpr std::string_view kList =
      R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}}})";
  Check(
      {{kList,
        {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
        {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
       {R"({"properties":{"a~b/c":{"type":"integer"},"d":{"$ref":"#/properties/a~0b~1c"}},"additionalProperties":false})",
        {R"({"d":1})"},
        {R"({"d":""})"}},
       {R"({"properties":{"d":{"$ref":"#/$defs/List%3CItem%3E"}},"additionalProperties":false,"$defs":{"List<Item>":{"type":"integer"}}})",
        {R"({"d":1})"},
        {R"({"d":""})"}},
       {R"({"$id":"urn:x","properties":{"d":{"$ref":"urn:x#/$defs/a~1b%20c"}},"additionalProperties":false,"$defs":{"a/b c":{"type":"integer"}}})",
        {R"({"d":1})"},
        {R"({"d":""})"}},
       {R"({"properties":{"d":{"$ref":"item.json"},"e":{"$ref":"#n%C3%A4me"}},"additionalProperties":false,"$defs":{"i":{"$id":"item.json","type":"integer"},"n":{"$anchor":"näme","type":"integer"}}})",
        {R"({"d":1,"e":2})"},
        {R"({"d":""})", R"({"e":""})"}},
       {R"({"properties":{"d":{"$ref":"#/$defs/100%"}},"additionalProperties":false,"$defs":{"100%":{"type":"integer"}}})",
        {R"({"d":1})"},
        {R"({"d":""})"}},
       {R"({"$ref":"#/$defs/s","maxLength":2,"$defs":{"s":{"type":"string","minLength":1}}})",
        {"\"a\"", "\"ab\""},
        {"\"\"", "\"abc\""}}});
}

TEST(JsonSchema, DepthIsBoundedAndEveryBeginningCanBeEnded) {
  constexpr std::string_view kNest = R"({"type":"array","items":{"$ref":"#"}})";
  EXPECT_TRUE(Accepts(kNest, std::string(kMaxDepth + 1, '[') + std::string(kMaxDepth + 1, ']')));
  EXPECT_FALSE(Accepts(kNest, std::string(kMaxDepth + 2, '[') + std::string(kMaxDepth + 2, ']')));
  // Each level has another below it: at the limit the outer one must not begin.
  constexpr std::string_view kDeeper =
      R"({"anyOf":[{"type":"null"},{"type":"array","prefixItems":[{"type":"array","prefixItems":[{"$ref":"#"}],"minItems":1}],"minItems":1}]})";
  Matcher matcher = testing::ToyMatcher(kDeeper);
  TokenMask mask(matcher.num_ids());
  int depth = 0;
  for (; matcher.AcceptBytes("[").ok(); ++depth) {
    matcher.Mask(mask);
    ASSERT_GT(mask.Count(), 0) << depth;
  }
  EXPECT_EQ(depth, static_cast<int>(kMaxDepth));
  EXPECT_TRUE(matcher.AcceptBytes("null").ok());
  EXPECT_TRUE(matcher.AcceptBytes(std::string(static_cast<size_t>(depth), ']')).ok());
  EXPECT_TRUE(matcher.IsComplete());
}

std::string Items(size_t count, const std::string& one) {
  std::string list;
  for (size_t i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + one;
  return list;
}

TEST(JsonSchema, LargeCountsAreCountedByNumbers) {
  const auto text = [](size_t count) { return '"' + std::string(count, 'a') + '"'; };
  constexpr std::string_view kLong = R"({"type":"string","maxLength":65536})";
  EXPECT_TRUE(Accepts(kLong, text(65536)));
  EXPECT_FALSE(Accepts(kLong, text(65537)));
  constexpr std::string_view kBetween = R"({"type":"string","minLength":30000,"maxLength":30001})";
  EXPECT_FALSE(Accepts(kBetween, text(29999)));
  EXPECT_TRUE(Accepts(kBetween, text(30000)));
  EXPECT_TRUE(Accepts(kBetween, text(30001)));
  EXPECT_FALSE(Accepts(kBetween, text(30002)));
  EXPECT_TRUE(Accepts(R"({"type":"string","minLength":30000})", text(40000)));
  EXPECT_TRUE(Accepts(R"({"type":"string","maxLength":2147483647.0})", text(3)));
  EXPECT_TRUE(Accepts(R"({"type":"string","maxLength":18446744073709551615})", text(3)));
  constexpr std::string_view kPattern = R"({"type":"string","pattern":"^a*$","maxLength":20000})";
  EXPECT_TRUE(Accepts(kPattern, text(20000)));
  EXPECT_FALSE(Accepts(kPattern, text(20001)));
  EXPECT_FALSE(Accepts(kPattern, "\"b\""));
  constexpr std::string_view kEven =
      R"({"type":"string","pattern":"^(aa)*$","minLength":3,"maxLength":20001})";
  EXPECT_TRUE(Accepts(kEven, text(20000)));
  EXPECT_FALSE(Accepts(kEven, text(2)));
  EXPECT_FALSE(Accepts(kEven, text(20002)));
  constexpr std::string_view kCounts = R"({"type":"string","pattern":"^x-[a-f]{1,50000}={0,2}$"})";
  EXPECT_TRUE(Accepts(kCounts, "\"x-" + std::string(50000, 'c') + "==\""));
  EXPECT_FALSE(Accepts(kCounts, "\"x-" + std::string(50001, 'c') + "\""));
  EXPECT_FALSE(Accepts(kCounts, "\"x-==\""));

  constexpr std::string_view kItems =
      R"({"type":"array","items":{"type":"integer"},"minItems":300,"maxItems":20000})";
  EXPECT_FALSE(Accepts(kItems, "[" + Items(299, "1") + "]"));
  EXPECT_TRUE(Accepts(kItems, "[" + Items(300, "1") + "]"));
  EXPECT_TRUE(Accepts(kItems, "[" + Items(20000, "1") + "]"));
  EXPECT_FALSE(Accepts(kItems, "[" + Items(20001, "1") + "]"));
  EXPECT_FALSE(Accepts(kItems, "[]"));
  constexpr std::string_view kRest =
      R"({"type":"array","prefixItems":[{"type":"null"},{"type":"null"}],"items":{"type":"integer"},"maxItems":1000})";
  EXPECT_TRUE(Accepts(kRest, "[]"));
  EXPECT_TRUE(Accepts(kRest, "[null]"));
  EXPECT_TRUE(Accepts(kRest, "[null,null," + Items(998, "1") + "]"));
  EXPECT_FALSE(Accepts(kRest, "[null,null," + Items(999, "1") + "]"));
  constexpr std::string_view kNested =
      R"({"type":"array","maxItems":5000,"items":{"type":"array","minItems":250,"items":{"type":"null"}}})";
  EXPECT_TRUE(Accepts(kNested, "[" + Items(3, "[" + Items(250, "null") + "]") + "]"));
  EXPECT_FALSE(Accepts(kNested, "[" + Items(3, "[" + Items(249, "null") + "]") + "]"));

  constexpr std::string_view kMembers =
      R"({"properties":{"a":{"type":"null"},"b":{"type":"null"}},"required":["b"],"additionalProperties":{"type":"null"},"minProperties":250,"maxProperties":20000})";
  const auto members = [](size_t count) {
    std::string out = R"({"b":null)";
    for (size_t i = 1; i < count; ++i) out += ",\"x" + std::to_string(i) + "\":null";
    return out + "}";
  };
  EXPECT_FALSE(Accepts(kMembers, members(249)));
  EXPECT_TRUE(Accepts(kMembers, members(250)));
  EXPECT_TRUE(Accepts(kMembers, members(20000)));
  EXPECT_FALSE(Accepts(kMembers, members(20001)));
  EXPECT_TRUE(Accepts(
      R"({"properties":{"a":{}},"additionalProperties":false,"minProperties":0,"maxProperties":999999})",
      R"({"a":1})"));
}

TEST(JsonSchema, LargeCountsTakeLittle) {
  for (
      const std::string_view schema :
      {R"({"type":"string","maxLength":65536})", R"({"type":"array","maxItems":1000000,"items":{}})",
       R"({"type":"string","minLength":100000,"maxLength":1000000})",
       R"({"type":"string","pattern":"^[A-Za-z0-9+/]{0,1000000}={0,2}$"})",
       R"({"type":"string","pattern":"^[a-z]+( [a-z]+)*$","maxLength":65536})",
       R"({"type":"string","format":"uri","maxLength":65536})",
       R"({"type":"object","additionalProperties":{"type":"string","maxLength":65536},"propertyNames":{"maxLength":256},"maxProperties":65536})"}) {
    const std::clock_t begin = std::clock();
    const auto program = CompileJsonSchema(schema);
    ASSERT_TRUE(program) << schema << program.error().ToString();
    size_t states = 0;
    for (const Dfa& dfa : (*program)->dfas) states += dfa.num_states();
    EXPECT_LT(states, 60000U) << schema;
    EXPECT_LT((*program)->nodes.size(), 2000U) << schema;
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 2.0)
        << schema;  // 0.2 on a machine alone.
  }
}

TEST(JsonSchema, ErrorsNameThePlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "not valid JSON"},
      {"3", "top level: wanted an object or a boolean"},
      {R"({"properties":{"a":{"$dynamicRef":"#x"}}})",
       "/properties/a/$dynamicRef: this keyword is not supported"},
      {R"({"contains":{},"maxContains":1.5})", "/maxContains: wanted a count"},
      {R"({"contains":{"uniqueItems":true},"maxContains":1})", "/contains/allOf/1/not/uniqueItems"},
      {R"({"contains":{},"minContains":3,"maxContains":2})", "maxContains 2 below minContains 3"},
      {R"({"typo":1})", "/typo: this keyword is not supported"},
      {R"({"uniqueItems":1})", "/uniqueItems: wanted true or false"},
      {R"({"not":{}})", "no value satisfies"},
      {R"({"not":{"uniqueItems":true}})", "/not/uniqueItems: this keyword is not supported inside not"},
      {R"({"not":{"const":{}}})", "objects and arrays are not supported inside not"},
      {R"({"multipleOf":0})", "/multipleOf: 0: wanted a number above 0"},
      {R"({"multipleOf":12345})", "of at most 4 digits"},
      {R"({"minProperties":3,"maxProperties":2})", "maxProperties 2 below minProperties 3"},
      {R"({"patternProperties":{"(":{}}})", "/patternProperties/(: pattern, character"},
      {R"({"prefixItems":[{}],"contains":{},"maxItems":20000})", "/contains: beside prefixItems"},
      {R"({"type":"str"})", "/type: wanted a type or a list of types, got \"str\""},
      {R"({"items":[3]})", "/items: wanted a schema"},
      {R"({"minLength":-1})", "/minLength: wanted a count"},
      {R"({"minLength":1e10})",
       "top level: minLength 1000000000 and maxLength none: an automaton of more than"},
      {R"({"const":12345678901234567890123})", "/const: wanted no number past 64 bits"},
      {R"({"enum":[1,{"a":[-18446744073709551617]}]})", "/enum: wanted no number past 64 bits"},
      {R"({"exclusiveMinimum":"1"})", "/exclusiveMinimum: wanted a number"},
      {R"({"anyOf":[]})", "/anyOf: wanted a list of schemas"},
      {R"_({"anyOf":[{"type":"null"},{"pattern":"(?=a)"}]})_", "/anyOf/1/pattern: pattern, character 2"},
      {R"({"pattern":"a{3,2}"})", "ends before it begins"},
      {R"({"pattern":"[z-a]"})", "not a range"},
      {R"_({"pattern":"a)"})_", "no group to close"},
      {R"({"pattern":"a$b"})", "not at an end"},
      {R"({"pattern":"\\bx"})", "escape is not supported"},
      {R"({"pattern":"a*+"})", "possessive"},
      {R"({"$ref":"http://x/y"})", "/$ref: \"http://x/y\": only references into this schema"},
      {R"({"$ref":"#/$defs/x"})", "\"#/$defs/x\" names no schema"},
      {R"({"$ref":"#x/~3"})", "names no schema"},
      {R"({"$ref":"#"})", "leads back to itself"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "leads back to itself"},
      {R"({"$ref":"#","minimum":1})", "lead back to themselves"},
      {R"({"properties":{"x":{"$ref":"#"}},"required":["x"]})", "no value satisfies"},
      {R"({"allOf":[{"type":"string"},{"type":"null"}]})", "no value satisfies"},
      {"false", "no value satisfies"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "no value satisfies"},
      {R"({"type":"integer","minimum":1e18})", "at most 18 digits"},
      {R"({"minItems":3,"maxItems":2})", "maxItems 2 below minItems 3"},
      {R"({"minLength":3,"maxLength":2})", "maxLength 2 below minLength 3"},
      {R"({"allOf":[{"patternProperties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})",
       "patternProperties"},
      {R"({"allOf":[{"contains":{"const":1}},{"contains":{"const":2}}]})", "different \"contains\""},
      {R"({"enum":[[1]],"minItems":1})", "objects and arrays in enum"},
      {R"({"pattern":"^[ab]*a[ab]{20}$"})", "more than 100000 states"},
  };
  for (const auto& [schema, message] : cases) {
    const auto program = CompileJsonSchema(schema);
    ASSERT_FALSE(program.has_value()) << schema;
    EXPECT_THAT(program.error().message(), HasSubstr(message)) << schema;
  }
}

TEST(JsonSchema, AnUnknownFormatIsAnAnnotationUnlessTheSchemaIsStrict) {
  Check({{R"({"type":"string","format":"ulid","maxLength":3})", {"\"abc\"", "\"\""}, {"\"abcd\"", "5"}},
         {R"({"allOf":[{"type":"string","format":"x"},{"pattern":"^a+$"}]})", {"\"aa\""}, {"\"ab\""}},
         {R"({"type":"integer","format":"int32"})", {"7"}, {"\"7\""}}});
  for (const bool strict : {false, true}) {
    const Status status = CheckContent({.text = R"({"properties":{"a":{"type":"string","format":"ulid"}}})",
                                        .label = "s",
                                        .strict = strict});
    EXPECT_EQ(status.ok(), !strict);
    EXPECT_THAT(
        status.message(),
        HasSubstr(!strict ? "" : "/properties/a/format: \"ulid\" is not supported; these are: date-time"));
  }
}

// Keywords that pydantic, OpenAPI and older drafts write beside the rest.
TEST(JsonSchema, MembersByTheirNamesAndNumber) {
  Check(
      {{R"({"patternProperties":{"^a":{"type":"integer"},"z$":{"type":"null"}}})",
        {"{}", R"({"a":1,"b z":null})"},
        {R"({"b":1})", R"({"a":null})", R"({"az":1})"}},
       {R"({"properties":{"ab":{"minimum":3}},"patternProperties":{"^a":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
        {R"({"ab":3,"ac":1,"b":"x"})"},
        {R"({"ab":2})", R"({"ab":3.5})", R"({"b":1})"}},
       {R"({"type":"object","propertyNames":{"pattern":"^[a-c]{1,2}$"}})",
        {R"({"a":1,"bc":[]})"},
        {R"({"d":1})"}},
       {R"({"properties":{"abc":{},"a":{}},"propertyNames":{"maxLength":1}})",
        {R"({"a":1})", "{}"},
        {R"({"abc":1})"}},
       {R"({"type":"object","minProperties":1,"maxProperties":2})",
        {R"({"a":1})", R"({"a":1,"b":2})"},
        {"{}", R"({"a":1,"b":2,"c":3})"}},
       {R"({"properties":{"a":{},"b":{},"c":{}},"required":["b"],"minProperties":2})",
        {R"({"a":1,"b":2})", R"({"b":2,"c":3})", R"({"a":1,"b":2,"c":3})"},
        {R"({"b":1})", R"({"a":1,"c":2})"}},
       {R"({"properties":{"a":{}},"unevaluatedProperties":{"type":"integer"}})",
        {R"({"a":"x","b":1})"},
        {R"({"b":"x"})"}},
       {R"({"properties":{"card":{},"address":{},"x":{}},"dependentRequired":{"card":["address"]}})",
        {"{}", R"({"address":1})", R"({"card":1,"address":2})"},
        {R"({"card":1})", R"({"card":1,"x":1})"}},
       {R"({"properties":{"a":{},"b":{}},"dependentSchemas":{"a":{"properties":{"b":{"const":1}},"required":["b"]}}})",
        {R"({"b":2})", R"({"a":0,"b":1})"},
        {R"({"a":0})", R"({"a":0,"b":2})"}}});
}

TEST(JsonSchema, ItemsThatAreAskedForOrDiffer) {
  Check(
      {{R"({"items":{"type":"integer"},"contains":{"minimum":5},"maxItems":3})",
        {"[7]", "[1,7]", "[7,1,1]"},
        {"[]", "[1]", "[1,2,3,7]", "[1,2]"}},
       {R"({"type":"array","contains":{"const":"x"},"minContains":2})", {R"(["x",1,"x"])"}, {R"(["x",1])"}},
       {R"({"items":{"type":"integer"},"contains":{"minimum":5},"maxContains":2})",
        {"[7]", "[1,7,7]", "[7,1,7,1,1,1]"},
        {"[]", "[1]", "[7,7,7]", "[7,1,7,7]"}},
       {R"({"items":{"type":"integer"},"contains":{"minimum":5},"minContains":0,"maxContains":1})",
        {"[]", "[1,1]", "[1,7]"},
        {"[7,7]", "[7,1,7]"}},
       {R"({"type":"array","contains":{},"minContains":0,"maxContains":2})", {"[]", "[1,2]"}, {"[1,2,3]"}},
       {R"({"items":{"type":"integer"},"maxContains":1})", {"[]", "[7,7]"}, {}},
       {R"({"prefixItems":[{"type":"string"},{"type":"integer"}],"items":{"type":"integer"},"contains":{"const":7}})",
        {R"(["a",7])", R"(["a",1,7,1])"},
        {R"(["a"])", R"(["a",1])", R"([7,7])"}},
       {R"({"prefixItems":[{"type":"string"},{"type":"integer"}],"items":false,"contains":{"type":"integer"}})",
        {R"(["a",7])"},
        {R"(["a"])", R"(["a",1,2])"}},
       {R"({"type":"array","items":{"type":"integer"},"not":{"contains":{"minimum":5}}})",
        {"[]", "[1]"},
        {"[5]", "[1,7]"}},
       {R"({"items":{"type":"integer"},"allOf":[{"contains":{"minimum":5}},{"contains":{"minimum":5},"minContains":0,"maxContains":1}]})",
        {"[5,1]"},
        {"[]", "[5,5]"}},
       // Large bounds are counted, and what is asked for comes first.
       {R"({"items":{"type":"integer"},"contains":{"minimum":5},"maxItems":1000000})",
        {"[7]", "[7,1,1]", "[7,7]"},
        {"[]", "[1]"}},
       {R"({"items":{"type":"integer"},"contains":{"minimum":5},"maxContains":2,"minItems":3,"maxItems":100000})",
        {"[7,1,1]", "[7,7,1,1]"},
        {"[7,1]", "[7,7]", "[1,1,1]", "[7,7,7]", "[7,7,7,1]"}},
       {R"({"items":{"type":"integer"},"contains":{"minimum":5},"minContains":0,"maxContains":1,"maxItems":100000})",
        {"[]", "[1,1]", "[7]", "[7,1]"},
        {"[7,7]"}},
       {R"({"items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":1})",
        {R"(["a"])", R"(["c","a","b"])"},
        {"[]", R"(["a","a"])", R"(["a","b","a"])"}},
       {R"({"type":"array","uniqueItems":true})", {"[1,2]"}, {}},
       {R"({"items":[{"type":"integer"},{"type":"string"}],"additionalItems":false})",
        {"[1,\"a\"]", "[1]"},
        {"[1,\"a\",2]"}}});
}

TEST(JsonSchema, WhatAValueIsNot) {
  Check(
      {{R"({"type":["string","integer"],"not":{"type":"string"}})", {"1"}, {"\"a\""}},
       {R"({"type":"string","not":{"enum":["a","b\n"]}})",
        {"\"c\"", "\"ab\"", "\"\""},
        {"\"a\"", R"("b\n")", R"("\u0061")"}},
       {R"({"type":"integer","not":{"const":0}})", {"1", "-3"}, {"0", "-0"}},
       {R"({"type":"number","not":{"const":1.5}})", {"1.25", "15"}, {"1.5", "1.50"}},
       {R"({"type":"string","not":{"pattern":"b"}})", {"\"ac\""}, {"\"abc\""}},
       {R"({"type":"string","minLength":1,"not":{"minLength":3}})", {"\"ab\""}, {"\"abc\"", "\"\""}},
       {R"({"type":"object","properties":{"a":{},"b":{}},"not":{"required":["a","b"]}})",
        {R"({"a":1})", "{}"},
        {R"({"a":1,"b":2})"}},
       {R"({"type":"integer","not":{"anyOf":[{"minimum":5},{"const":2}]}})", {"1", "4", "-9"}, {"5", "2"}},
       {R"({"type":"object","properties":{"country":{"enum":["US","NL"]},"code":{"type":"string"}},"required":["country","code"],"if":{"properties":{"country":{"const":"US"}}},"then":{"properties":{"code":{"pattern":"^[0-9]{2}$"}}},"else":{"properties":{"code":{"pattern":"^[A-Z]$"}}}})",
        {R"({"country":"US","code":"12"})", R"({"country":"NL","code":"A"})"},
        {R"({"country":"US","code":"A"})", R"({"country":"NL","code":"12"})"}},
       {R"({"type":"string","nullable":true})", {"null", "\"a\""}, {"1"}},
       {R"({"anyOf":[{"type":"integer"},{"type":"string"}],"oneOf":[{"minimum":3},{"minLength":2}]})",
        {"3", "\"ab\""},
        {"true", "[]"}},
       {R"({"allOf":[{"pattern":"a"},{"pattern":"b"},{"format":"hostname"}]})",
        {"\"a-b\""},
        {"\"a\"", "\"a b\""}},
       {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})",
        {R"({"a":1})", "{}"},
        {R"({"b":1})"}}});
}

TEST(JsonSchema, MultiplesAndOlderBounds) {
  Check(
      {{R"({"type":"integer","multipleOf":3})", {"0", "-9", "12", "3000000"}, {"1", "10", "-4"}},
       {R"({"type":"number","multipleOf":0.01})", {"0.25", "12", "-1.5", "1.250"}, {"0.001", "1e2"}},
       {R"({"type":"number","multipleOf":2.5,"minimum":0})", {"0", "2.5", "5", "7.50"}, {"1", "2.4", "-2.5"}},
       {R"({"type":"integer","minimum":2,"exclusiveMinimum":true})", {"3"}, {"2"}}});
}

TEST(JsonSchema, FormatsOfPydantic) {
  Check(
      {{R"({"format":"uri"})",
        {"\"https://example.org:8080/a/b?x=1#y\"", "\"ftp://h\""},
        {"\"example.org\"", "\"http://\""}},
       {R"({"format":"ipv6"})",
        {"\"::1\"", "\"2001:db8::ff00:42:8329\"", "\"1:2:3:4:5:6:7:8\"", "\"::\"", "\"1::\""},
        {"\"1:2\"", "\"1::2::3\"", "\"12345::\""}},
       {R"({"format":"duration"})", {"\"P3DT4H5M\"", "\"PT36H\"", "\"P2W\""}, {"\"P\"", "\"PT\"", "\"3D\""}},
       {R"({"format":"uuid4"})",
        {"\"123e4567-e89b-42d3-a456-426614174000\""},
        {"\"123e4567-e89b-12d3-a456-426614174000\""}},
       {R"({"format":"ipv4network"})", {"\"10.0.0.0/8\""}, {"\"10.0.0.0\"", "\"10.0.0.0/33\""}},
       {R"({"format":"base64url"})", {"\"aGk_\"", "\"\"", "\"aG\""}, {"\"a\"", "\"a+b=\""}},
       {R"({"format":"json-pointer"})", {"\"/a~1b/0\"", "\"\""}, {"\"a\"", "\"/~2\""}},
       {R"({"format":"password","minLength":2})", {"\"ab\"", R"("\"\\")"}, {"\"a\""}}});
}

TEST(JsonSchema, AnnotationsAndEmptyConstraintsPass) {
  EXPECT_TRUE(Accepts(
      R"({"$schema":"https://json-schema.org/draft/2020-12/schema","title":"t","description":"d","default":1,"x-order":2,"uniqueItems":false,"type":"integer"})",
      "1"));
}

// Each would take exponential time or memory if nothing bounded it.
TEST(JsonSchema, HostileSchemasEndSoon) {
  std::string doubling = R"({"$ref":"#/$defs/d30","$defs":{"d0":{"type":"integer"})";
  std::string merging = doubling;
  std::string wide = R"({"anyOf":[)";
  for (int i = 1; i <= 30; ++i) {
    doubling += ",\"d" + std::to_string(i) + R"(":{"anyOf":[{"$ref":"#/$defs/d)" + std::to_string(i - 1) +
                R"("},{"title":"x","$ref":"#/$defs/d)" + std::to_string(i - 1) + "\"}]}";
    merging += ",\"d" + std::to_string(i) + R"(":{"allOf":[{"$ref":"#/$defs/d)" + std::to_string(i - 1) +
               R"("},{"$ref":"#/$defs/d)" + std::to_string(i - 1) + "\"}]}";
  }
  for (int i = 0; i < 9000; ++i)
    wide += (i == 0 ? "" : ",") + (R"({"pattern":"(a|aa)*b.{)" + std::to_string(i % 997) + "}c\"}");
  const std::vector<std::string> schemas = {
      doubling + "}}",
      merging + "}}",
      wide + "]}",
      R"({"pattern":"(((a{1000}){1000}){1000}){1000}"})",
      R"({"pattern":"(a|b)*a(a|b){25}"})",
      R"({"pattern":"((((a*)*)*)*)*b"})",
      R"({"pattern":")" + std::string(300, '(') + "\"}",
      std::string(200000, '['),
      R"({"type":"object","required":[)" + std::string("\"a\"") + "],\"minProperties\":0}"};
  for (const std::string& schema : schemas) {
    const std::clock_t start = std::clock();
    const auto program = CompileJsonSchema(schema);
    if (program) {
      Matcher matcher(*program, testing::ToyTrie(), {});
      TokenMask mask(matcher.num_ids());
      matcher.Mask(mask);
      EXPECT_GT(mask.Count(), 0);
    }
    // Time of this process. About a second without sanitizers; what is not bounded takes for ever.
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, 30) << schema.substr(0, 100);
  }
}

// Counts of patterns whose repetition runs into what is behind it, and lengths beside counts.
TEST(JsonSchemaTest, CountsOfPatternsAndLengthsAreKeptTogether) {
  const auto quoted = [](size_t count, const std::string& first, const std::string& last) {
    return "\"" + first + std::string(count, 'a') + last + "\"";
  };
  const std::string ends = R"({"type":"string","pattern":"^[a-z][a-z0-9-]{3,300}[a-z0-9]$"})";
  for (const size_t count : {3, 4, 150, 299, 300})
    EXPECT_TRUE(Accepts(ends, quoted(count, "b", "9"))) << count;
  for (const size_t count : {0, 2, 301, 302}) EXPECT_FALSE(Accepts(ends, quoted(count, "b", "9"))) << count;
  EXPECT_FALSE(Accepts(ends, quoted(10, "b", "-")));
  EXPECT_FALSE(Accepts(ends, quoted(10, "9", "9")));
  const std::string both = R"({"type":"string","pattern":"^b[a-z]{2,400}$","minLength":10,"maxLength":250})";
  for (const size_t count : {9, 100, 249}) EXPECT_TRUE(Accepts(both, quoted(count, "b", ""))) << count;
  for (const size_t count : {2, 8, 250, 300}) EXPECT_FALSE(Accepts(both, quoted(count, "b", ""))) << count;
  // A bound that the pattern keeps by itself, and one that it never reaches.
  const std::string kept = R"({"type":"string","pattern":"^[a-z]{0,300}$","maxLength":65536})";
  EXPECT_TRUE(Accepts(kept, quoted(300, "", "")));
  EXPECT_FALSE(Accepts(kept, quoted(301, "", "")));
  const std::string pairs =
      R"({"type":"string","pattern":"^([0-9a-f]{2}){1,300}$","maxLength":401,"minLength":3})";
  for (const size_t count : {4, 400}) EXPECT_TRUE(Accepts(pairs, quoted(count, "", ""))) << count;
  for (const size_t count : {2, 3, 401, 402}) EXPECT_FALSE(Accepts(pairs, quoted(count, "", ""))) << count;
  // Escapes and characters of several bytes count as one.
  const std::string any = R"({"type":"string","pattern":"^\\S.{0,250}\\S$"})";
  EXPECT_TRUE(Accepts(any, "\"é" + std::string(100, ' ') + "\\\"ü€\""));
  EXPECT_FALSE(Accepts(any, "\"é" + std::string(252, 'x') + "€\""));
  EXPECT_TRUE(Accepts(any, "\"é" + std::string(250, 'x') + "€\""));
  EXPECT_FALSE(Accepts(any, "\"é" + std::string(10, 'x') + " \""));
}

}  // namespace
}  // namespace dsv4::grammar
