// Files of API keys, and keys that no client could send.
#include "apps/serve/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace dsv4::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ApiKeys, AreLinesOfTheFile) {
  EXPECT_THAT(*ParseApiKeys("a\r\n\r\nb c\n\xD0\xBA\nlast", "keys"),
              ElementsAre("a", "b c", "\xD0\xBA", "last"));
}

TEST(ApiKeys, ThatNoClientCouldSendAreRefusedWithTheirLine) {
  const auto refusal = [](std::string_view text) {
    const auto keys = ParseApiKeys(text, "keys");
    return keys ? "taken" : keys.error().message();
  };
  EXPECT_THAT(refusal("\xEF\xBB\xBFkey\n"), HasSubstr("keys, line 1: got a byte-order mark"));
  EXPECT_THAT(refusal("a\n b\n"), HasSubstr("keys, line 2: got blanks around the key"));
  EXPECT_THAT(refusal("a\nb\t\n"), HasSubstr("keys, line 2: got the control character 0x09"));
  EXPECT_THAT(refusal("a\n  \n"), HasSubstr("keys, line 2: got an empty key"));
  EXPECT_THAT(refusal(std::string_view("a\0b\n", 4)), HasSubstr("0x00 at byte 1"));
  EXPECT_THAT(refusal("a\rb\n"), HasSubstr("0x0D"));
  EXPECT_THAT(refusal("a\n# comment\n"), HasSubstr("keys, line 2: got a line that begins with '#'"));
  EXPECT_THAT(refusal(std::string(5000, 'k')), HasSubstr("a key of 5000 bytes, wanted at most 4096"));
  EXPECT_THAT(refusal("\r\n\n"), HasSubstr("no API key in it"));
}

TEST(ApiKeys, OfTheCommandLineAreLookedAtToo) {
  for (const char* key : {"", " ", "\t", "\n", "\r\n", "a\n", " a", "a ", "a\x7F", "\xEF\xBB\xBFx"})
    EXPECT_THAT(CheckApiKey(key, "--api-key").message(), StartsWith("--api-key: got ")) << key;
  for (const char* key : {"a", "a b", "sk-123", "#1"}) EXPECT_TRUE(CheckApiKey(key, "--api-key").ok()) << key;
}

}  // namespace
}  // namespace dsv4::apps
