// Tests of patterns whose counts are kept on the stack: texts at their bounds, as JSON.
#include "grammar/regex_nodes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "grammar/testing.h"

namespace dsv4::grammar {
namespace {

using testing::Accepts;

bool Fits(const std::string& pattern, const std::string& text, const std::string& more = "") {
  const std::string schema = fmt::format(R"({{"type":["string","null"],"pattern":"{}"{}}})", pattern, more);
  return Accepts(schema, "\"" + text + "\"");
}

std::string Of(size_t count, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST(RegexNodes, CountsStandBesideEachOther) {
  const std::string path = "^.{1,255}/.{1,255}$";
  EXPECT_TRUE(Fits(path, "a/b"));
  EXPECT_TRUE(Fits(path, Of(255, "é") + "/" + Of(255, "/")));
  EXPECT_FALSE(Fits(path, Of(256, "a") + "/b"));
  EXPECT_FALSE(Fits(path, "a/" + Of(256, "b")));
  EXPECT_FALSE(Fits(path, "a"));
  EXPECT_TRUE(Fits(path, "a/b", R"(,"minLength":3,"maxLength":511)"));
}

TEST(RegexNodes, CountsStandInsideEachOther) {
  const std::string host = "^([a-z0-9-]{1,63}\\\\.){1,300}[a-z]{2,63}$";
  EXPECT_TRUE(Fits(host, "a-1.example.com"));
  EXPECT_TRUE(Fits(host, Of(300, "ab.") + "com"));
  EXPECT_FALSE(Fits(host, Of(301, "ab.") + "com"));
  EXPECT_FALSE(Fits(host, "com"));
  EXPECT_FALSE(Fits(host, Of(64, "a") + ".com"));
  const std::string words = "^[^\\\\s]{1,500}( [^\\\\s]{1,500})*$";
  EXPECT_TRUE(Fits(words, "a bc " + Of(500, "d")));
  EXPECT_FALSE(Fits(words, "a bc " + Of(501, "d")));
  EXPECT_FALSE(Fits(words, "a  b"));
  const std::string either = "^([ab]{1,700000}|c)$";
  EXPECT_TRUE(Fits(either, Of(700, "ab")));
  EXPECT_TRUE(Fits(either, "c"));
  EXPECT_FALSE(Fits(either, "ac"));
}

TEST(RegexNodes, PartsMayBeEmpty) {
  const std::string lines = "^([a-z]{0,300};?){0,300}$";
  for (const char* text : {"", ";", "a;;b", "abc"}) EXPECT_TRUE(Fits(lines, text)) << text;
  EXPECT_FALSE(Fits(lines, "a.b"));
  EXPECT_TRUE(Accepts(R"({"type":["string","null"],"pattern":"^.{1,255}/.{1,255}$"})", "null"));
}

}  // namespace
}  // namespace dsv4::grammar
