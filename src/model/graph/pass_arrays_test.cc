// Tests of pass arrays: remade for a replayed pass, parts not found, empty ones told apart.
#include "model/graph/pass_arrays.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace dsv4::model {
namespace {

void Tokens(const PassPlan& plan, const PassArrays::Of& of, std::vector<int32_t>* out) {
  *out = plan.tokens;
  out->push_back(of.layer);
}

std::vector<int32_t> Numbers(const ops::StepArrays::Array& array) {
  std::vector<int32_t> numbers(array.count);
  std::memcpy(numbers.data(), array.data, array.count * array.element_bytes);
  return numbers;
}

TEST(PassArrays, AnArrayIsMadeAgainOfThePassThatIsReplayed) {
  PassArrays arrays;
  PassPlan walked;
  walked.tokens = {1, 2};
  const std::span<const int32_t> made = arrays.Make(Tokens, walked, {.layer = 7});
  arrays.Fixed(std::vector<int32_t>{5});
  arrays.EndPass();
  PassPlan replayed;
  replayed.tokens = {8, 9, 10};
  arrays.SetPass(&replayed);
  ASSERT_EQ(arrays.size(), 2U);
  EXPECT_EQ(made.size(), 3U);
  EXPECT_EQ(Numbers(arrays.Make(0)), (std::vector<int32_t>{8, 9, 10, 7}));
  EXPECT_EQ(Numbers(arrays.Make(1)), std::vector<int32_t>{5});
}

// Arrays asked for in parts would be made again as a whole.
TEST(PassArrays, APartOfAnArrayIsNotFound) {
  PassArrays arrays;
  PassPlan plan;
  plan.tokens = {1, 2};
  const std::span<const int32_t> first = arrays.Make(Tokens, plan, {});
  const std::span<const int32_t> second = arrays.Make(Tokens, plan, {});
  EXPECT_EQ(arrays.Find(std::as_bytes(first)), 0);
  EXPECT_EQ(arrays.Find(std::as_bytes(second)), 1);
  EXPECT_EQ(arrays.Find(std::as_bytes(first.first(2))), -1);
  EXPECT_EQ(arrays.Find(std::as_bytes(first.last(2))), -1);
  const std::vector<int32_t> other(first.begin(), first.end());
  EXPECT_EQ(arrays.Find(std::as_bytes(std::span(other))), -1);
}

// Each has an entry of its own, be it empty.
TEST(PassArrays, EmptyArraysAreToldApart) {
  PassArrays arrays;
  const auto first = arrays.Fixed(std::vector<int32_t>());
  const auto second = arrays.Fixed(std::vector<int32_t>());
  EXPECT_EQ(arrays.Find(std::as_bytes(first)), 0);
  EXPECT_EQ(arrays.Find(std::as_bytes(second)), 1);
}

}  // namespace
}  // namespace dsv4::model
