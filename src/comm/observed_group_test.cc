// Test of the observed communicator: every exchange is seen while it is watched.
#include "comm/observed_group.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/ranks_testing.h"

namespace dsv4::comm {
namespace {

TEST(ObservedGroup, SeesEveryExchangeWhileSomebodyLooks) {
  testing::RunRanks(3, [](Communicator& group) {
    std::vector<std::string> seen;
    int num_settled = 0;
    const auto hooks = std::make_shared<ExchangeHooks>();
    const auto observed = Observe({&group, [](Communicator*) {}}, hooks);
    EXPECT_EQ(observed->rank(), group.rank());
    EXPECT_EQ(observed->size(), 3);
    ASSERT_TRUE(observed->Barrier().ok());
    if (group.rank() == 1) {  // The others do not look.
      hooks->settle = [&] {
        ++num_settled;
        return Status();
      };
      hooks->seen = [&](const Exchange& exchange) {
        EXPECT_GE(exchange.seconds, 0);
        seen.push_back(std::string(exchange.what) + " " + std::to_string(exchange.num_bytes) + " of " +
                       std::to_string(exchange.num_ranks));
      };
    }
    std::vector<float> values(6, 1.0F);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(values));
    const std::vector<int64_t> counts = {1, 2, 3};
    const std::vector<int64_t> row_bytes = {4, 8, 12};
    const auto mine = static_cast<size_t>(group.rank() + 1);
    ASSERT_TRUE(observed->AllReduceSum(values).ok());
    EXPECT_EQ(values[0], 3.0F);
    std::vector<float> part(mine);
    ASSERT_TRUE(observed->ReduceScatterSum(values, counts, part).ok());
    ASSERT_TRUE(observed->AllGather(std::as_bytes(std::span(part)), 1, row_bytes, bytes).ok());
    EXPECT_EQ(values[5], 9.0F);
    std::vector<float> parts(3 * mine);
    ASSERT_TRUE(observed->AllToAll(bytes, 1, row_bytes, std::as_writable_bytes(std::span(parts))).ok());
    ASSERT_TRUE(observed->Broadcast(bytes, 2).ok());
    if (group.rank() == 0) {
      ASSERT_TRUE(observed->Send(bytes, 1).ok());
    }
    if (group.rank() == 1) {
      ASSERT_TRUE(observed->Recv(bytes, 0).ok());
    }
    auto pair = observed->Split(group.rank() == 2 ? 1 : 0);
    ASSERT_TRUE(pair.has_value());
    ASSERT_TRUE((*pair)->Barrier().ok());
    EXPECT_TRUE(observed->Check().ok());
    *hooks = {};
    ASSERT_TRUE(observed->Barrier().ok());
    if (group.rank() != 1) return;
    EXPECT_EQ(seen, (std::vector<std::string>{"all-reduce 24 of 3", "reduce-scatter 24 of 3",
                                              "all-gather 24 of 3", "all-to-all 24 of 3", "broadcast 24 of 3",
                                              "receive 24 of 3", "barrier 0 of 2"}));
    EXPECT_EQ(num_settled, 14);
  });
}

}  // namespace
}  // namespace dsv4::comm
