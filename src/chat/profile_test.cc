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
}

TEST(Profile, WhatCannotBeRenderedIsRefused) {
  EXPECT_THAT(Detected({.option = "v3"}),
              HasSubstr("INVALID_ARGUMENT: chat revision: got 'v3', wanted one of v4, v4-0731"));
  EXPECT_THAT(Detected({.metadata = "v4.1"}), HasSubstr("UNIMPLEMENTED: chat revision: got v4.1"));
  EXPECT_THAT(Detected({.encoder_source = "SYSTEM = '<｜System｜>'"}), HasSubstr("UNIMPLEMENTED"));
}

TEST(Profile, NamesTheTokensThatATokenizerMustHave) {
  const ChatProfile& v4 = *FindChatProfile("v4").value();
  EXPECT_THAT(v4.RequiredTokens(), ::testing::UnorderedElementsAre(
                                       "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                                       "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"));
  EXPECT_THAT(v4.OptionalTokens(), Contains("<｜latest_reminder｜>"));
  EXPECT_THAT(v4.OptionalTokens(), Contains("<｜read_url｜>"));
  EXPECT_THAT(v4.StopTokens(), ::testing::ElementsAre("<｜end▁of▁sentence｜>", "<｜User｜>"));
}

}  // namespace
}  // namespace dsv4::chat
