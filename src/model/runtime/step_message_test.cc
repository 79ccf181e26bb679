// Tests of messages of rank 0: they arrive, and a piece of one does not pass for the whole.
#include "model/runtime/step_message.h"

#include <gtest/gtest.h>

namespace dsv4::model {
namespace {

StepMessage SomeMessage() {
  return {.kind = StepKind::kQueued,
          .events = {{.kind = kv::StateEvent::Kind::kCopied, .state = 7, .source = 3},
                     {.kind = kv::StateEvent::Kind::kRewound, .state = 3, .num_tokens = 12}},
          .chunks = {{.state = 7, .length = 40, .logits = 2, .tokens = {1, 2, 129279}},
                     {.state = 3,
                      .length = 0,
                      .logits = 1,
                      .tokens = {5},
                      .follows = 6,
                      .slots_later = true,
                      .num_drafts = 4}}};
}

TEST(StepMessage, ArrivesAsItWas) {
  const auto message = DecodeStepMessage(Encode(SomeMessage()));
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->kind, StepKind::kQueued);
  ASSERT_EQ(message->events.size(), 2U);
  EXPECT_EQ(message->events[0].kind, kv::StateEvent::Kind::kCopied);
  EXPECT_EQ(message->events[0].source, 3U);
  EXPECT_EQ(message->events[1].num_tokens, 12);
  ASSERT_EQ(message->chunks.size(), 2U);
  EXPECT_EQ(message->chunks[0].state, 7U);
  EXPECT_EQ(message->chunks[0].length, 40);
  EXPECT_EQ(message->chunks[0].logits, 2);
  EXPECT_EQ(message->chunks[0].tokens, (std::vector<int32_t>{1, 2, 129279}));
  EXPECT_EQ(message->chunks[1].tokens, (std::vector<int32_t>{5}));
  EXPECT_EQ(message->chunks[0].follows, -1);
  EXPECT_EQ(message->chunks[1].follows, 6);
  EXPECT_FALSE(message->chunks[0].slots_later);
  EXPECT_TRUE(message->chunks[1].slots_later);
  EXPECT_EQ(message->chunks[0].num_drafts, 0);
  EXPECT_EQ(message->chunks[1].num_drafts, 4);
  for (const StepKind kind : {StepKind::kStep, StepKind::kDrafts, StepKind::kLeave}) {
    const auto other = DecodeStepMessage(Encode({.kind = kind, .events = {}, .chunks = {}}));
    ASSERT_TRUE(other.has_value());
    EXPECT_EQ(other->kind, kind);
  }
}

TEST(StepMessage, PiecesAreRefused) {
  std::vector<std::byte> bytes = Encode(SomeMessage());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(DecodeStepMessage(std::span(bytes).first(length)).error().code(), StatusCode::kDataLoss)
        << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(DecodeStepMessage(bytes).has_value());
  bytes.pop_back();
  bytes[0] = std::byte{4};  // Byte of no kind.
  EXPECT_FALSE(DecodeStepMessage(bytes).has_value());
  // A count of events that no message could hold.
  bytes.assign(18, std::byte{0xFF});
  EXPECT_FALSE(DecodeStepMessage(bytes).has_value());
}

}  // namespace
}  // namespace dsv4::model
