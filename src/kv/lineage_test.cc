// Test of lineage: copies share what stood before them until it is written again.
#include "kv/lineage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace dsv4::kv {
namespace {

// Every token a number of its own: what copies have in common is the beginning that is equal.
struct Followed {
  Lineage lineage;
  std::vector<int> tokens;
};

TEST(Lineage, CopiesHaveWhatWasThereBeforeThemUntilItIsWrittenAgain) {
  std::mt19937 random(3);
  const auto below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
  int written = 0;
  int64_t num_partly = 0;
  std::vector<Followed> states(1);
  for (int round = 0; round < 20000; ++round) {
    Followed& state = states[below(states.size())];
    switch (below(4)) {
      case 0: {
        Followed copy{state.lineage, state.tokens};
        if (states.size() < 12)
          states.push_back(std::move(copy));
        else
          states[below(states.size())] = std::move(copy);
        break;
      }
      case 1:
        state.tokens.resize(state.tokens.size() - std::min(state.tokens.size(), below(9)));
        if (below(50) == 0) state.tokens.clear();
        state.lineage.Cut(static_cast<int64_t>(state.tokens.size()));
        break;
      default:
        for (size_t i = 0, count = 1 + below(6); i < count; ++i) state.tokens.push_back(++written);
        state.lineage.Reserve();
        state.lineage.Extend(static_cast<int64_t>(state.tokens.size()));
    }
    const Followed& a = states[below(states.size())];
    const Followed& b = states[below(states.size())];
    const auto common =
        std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end()).first -
        a.tokens.begin();
    ASSERT_EQ(a.lineage.CommonWith(b.lineage), common) << "round " << round;
    num_partly += common > 0 && common < std::ssize(a.tokens) ? 1 : 0;
  }
  EXPECT_GT(num_partly, 1000);
}

}  // namespace
}  // namespace dsv4::kv
