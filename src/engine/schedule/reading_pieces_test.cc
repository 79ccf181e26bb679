// Tests of prompt pieces: large, near the wanted size, for several prompts, and none where there is no room.
#include "engine/schedule/reading_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace dsv4::engine {
namespace {

constexpr int64_t kFew = 4;
constexpr int64_t kPlenty = 1000;

int64_t One(int64_t left, int64_t tokens, int64_t room) {
  PromptPiece piece{left, tokens};
  EnlargePieces({&piece, 1}, room, kFew);
  return piece.tokens;
}

int64_t Sum(const std::vector<PromptPiece>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                         [](int64_t sum, const PromptPiece& piece) { return sum + piece.tokens; });
}

TEST(ReadingPieces, AreLargeAndAsNearAsCanBe) {
  for (int64_t left = kFew + 1; left < 40; ++left) {
    for (int64_t wanted = 1; wanted <= left; ++wanted) {
      const int64_t piece = One(left, wanted, kPlenty);
      EXPECT_TRUE(IsLargePiece({left, piece}, kFew)) << left << ", " << wanted << ": " << piece;
      for (int64_t other = 1; other <= left; ++other) {
        if (!IsLargePiece({left, other}, kFew)) continue;
        EXPECT_FALSE(other <= wanted && (piece > wanted || piece < other))
            << left << ", " << wanted << ": " << piece << ", " << other;
        EXPECT_FALSE(piece > wanted && other < piece) << left << ", " << wanted << ": " << piece;
      }
    }
  }
}

TEST(ReadingPieces, AreAsWantedWhereThereIsNoChoice) {
  EXPECT_EQ(One(kFew, 1, kPlenty), 1) << "so few are left";
  EXPECT_EQ(One(20, 2, 2), 2) << "room for four";
  EXPECT_EQ(One(20, 2, 3), 5);
  EXPECT_EQ(One(8, 6, 1), 6) << "room for seven of eight";
  EXPECT_EQ(One(8, 6, 2), 8);
  EXPECT_EQ(One(20, 17, 0), 15) << "fewer want no room";
}

// However prompts are shared out, no piece is of few rows, a step has no more than it may, and all are read.
TEST(ReadingPieces, OfSeveralPromptsAreAllLarge) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> left(1 + random() % 5);
    for (int64_t& tokens : left) tokens = kFew + 1 + static_cast<int64_t>(random() % 60);
    const int64_t room = 2 * kFew;
    for (int steps = 0; std::ranges::any_of(left, [](int64_t tokens) { return tokens > 0; }); ++steps) {
      ASSERT_LT(steps, 1000);
      std::vector<PromptPiece> pieces;
      std::vector<size_t> of;
      for (size_t i = 0; i < left.size(); ++i) {
        if (left[i] == 0 || (i > 0 && random() % 4 == 0)) continue;
        pieces.push_back({left[i], std::min<int64_t>(left[i], 1 + static_cast<int64_t>(random() % 12))});
        of.push_back(i);
      }
      if (pieces.empty()) continue;
      const int64_t before = Sum(pieces);
      EnlargePieces(pieces, room, kFew);
      EXPECT_LE(Sum(pieces), before + room);
      EXPECT_GT(pieces[0].tokens, 0);
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].tokens > 0) {
          EXPECT_TRUE(IsLargePiece(pieces[i], kFew)) << pieces[i].left << ", " << pieces[i].tokens;
        }
        left[of[i]] -= pieces[i].tokens;
      }
    }
  }
}

TEST(ReadingPieces, WaitWhereThereIsNoRoomForTwo) {
  std::vector<PromptPiece> pieces = {{50, 3}, {50, 3}, {kFew, 2}};
  EnlargePieces(pieces, 0, kFew);
  EXPECT_EQ(pieces[0].tokens, kFew + 1);
  EXPECT_EQ(pieces[1].tokens, 0);
  EXPECT_EQ(pieces[2].tokens, 2) << "what has few left may have any piece";
}

}  // namespace
}  // namespace dsv4::engine
