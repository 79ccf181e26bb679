// Test of the op table: missing ops are named in its order.
#include "ops/op_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4::ops {
namespace {

Status NoOp(OpContext&, const RmsNormArgs&) { return {}; }

TEST(OpTable, MissingOpsAreNamedInTableOrder) {
  OpTable table;
  const std::vector<std::string> all = MissingOps(table);
  EXPECT_EQ(all.size() + MissingShardOps(table).size(), sizeof(OpTable) / sizeof(OpFunction<EmbedArgs>));
  EXPECT_EQ(all.front(), "prepare_weight");
  EXPECT_EQ(all.back(), "sample");
  EXPECT_EQ(MissingShardOps(table).back(), "sum_terms");
  table.rms_norm = NoOp;
  EXPECT_EQ(MissingOps(table).size(), all.size() - 1);
  EXPECT_THAT(MissingOps(table), ::testing::Not(::testing::Contains("rms_norm")));
}

}  // namespace
}  // namespace dsv4::ops
