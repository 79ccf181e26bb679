// Tests of chat profiles: which fact decides, efforts of V4.1, tokens that a tokenizer must have.
#include "chat/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4::chat {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::string Detected(const RevisionFacts& facts) {
  const auto profile = DetectChatProfile(facts);
  return profile ? std::string((*profile)->revision) : profile.error().ToString();
}

TEST(Profile, TheFirstFactDecides) {
  const std::string later = "PROMPTS = {'max': 'Reasoning Effort: Beyond maximum \\u2014 exhaustive'}";
  EXPECT_EQ(Detected({}), "v4");
  EXPECT_EQ(Detected({.encoder_source = "no effort table"}), "v4");
  EXPECT_EQ(Detected({.encoder_source = later}), "v4-0731");
  EXPECT_EQ(Detected({.metadata = "v4", .encoder_source = later}), "v4");
  EXPECT_EQ(Detected({.option = "v4-0731", .metadata = "v4"}), "v4-0731");
  EXPECT_EQ(Detected({.encoder_source = "SYSTEM = '<｜System｜>'" + later}), "v4.1");
  EXPECT_EQ(Detected({.model_type = "deepseek_v41", .encoder_source = later}), "v4.1");
  EXPECT_EQ(Detected({.model_type = "deepseek_v4", .encoder_source = later}), "v4-0731");
  EXPECT_EQ(Detected({.metadata = "v4", .model_type = "deepseek_v41"}), "v4");
}

TEST(Profile, WhatCannotBeRenderedIsRefused) {
  EXPECT_THAT(Detected({.option = "v3"}),
              HasSubstr("INVALID_ARGUMENT: chat revision: got 'v3', wanted one of v4, v4-0731, v4.1"));
}

TEST(Profile, EffortsOfV41AreNumbers) {
  const ChatProfile& v41 = *FindChatProfile("v4.1").value();
  const auto line = [](std::string_view number) {
    return "Reasoning Effort: " + std::string(number) +
           " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
  };
  const auto text = [&](std::string_view effort) {
    const auto found = v41.EffortText(effort);
    return found ? *found : found.error().message();
  };
  EXPECT_EQ(text("low"), line("50"));
  EXPECT_EQ(text("high"), line("75"));
  EXPECT_EQ(text("xhigh"), line("75"));
  EXPECT_EQ(text("max"), line("100"));
  for (const std::string_view number : {"1", "42", "100"}) EXPECT_EQ(text(number), line(number));
  for (const std::string_view wrong : {"0", "101", "-1", "+5", "7.5", "5 ", "", "medium", "99999999999"}) {
    EXPECT_EQ(text(wrong), "effort: got '" + std::string(wrong) +
                               "', revision v4.1 knows low, high, xhigh, max and numbers from 1 to 100");
  }
  EXPECT_THAT(FindChatProfile("v4").value()->EffortText("50").error().message(),
              ::testing::EndsWith("got '50', revision v4 knows high, max"));
}

TEST(Profile, NamesTheTokensThatATokenizerMustHave) {
  const ChatProfile& v4 = *FindChatProfile("v4").value();
  EXPECT_THAT(v4.RequiredTokens(), ::testing::UnorderedElementsAre(
                                       "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                                       "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"));
  EXPECT_THAT(v4.StopTokens(), ::testing::ElementsAre("<｜end▁of▁sentence｜>", "<｜User｜>"));
  const ChatProfile& v41 = *FindChatProfile("v4.1").value();
  EXPECT_THAT(v41.RequiredTokens(), Contains("<｜System｜>"));
  EXPECT_THAT(v41.StopTokens(), Contains("<｜System｜>"));
}

}  // namespace
}  // namespace dsv4::chat
