// A grouped linear and a linear of its result are one launch, in which all blocks meet (gemv_pair.h). The
// results are those of each alone.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cuda/one_launch.h"

namespace dsv4::testing {
namespace {

// The output of groups of heads, and what follows it: FP8 whose activations stay as they are, then FP8 whose
// are rounded.
TEST(CudaFusedLinears, GroupsAndALinearOfWhatTheyGive) {
  struct GroupedShape {
    int64_t groups;
    int64_t cols;
    int64_t rows;  // Rows of a group.
    int64_t dim;
    int64_t tokens;
  };
  // One GPU's and a part of the release's shape, and fewer tiles than SMs. Several tokens, also more than
  // leave room for four stages of weights, whose linear alone is split-K's.
  for (const auto& [groups, cols, rows, dim, tokens] :
       {GroupedShape{8, 4096, 1024, 4096, 1}, GroupedShape{4, 4096, 1024, 4096, 1},
        GroupedShape{3, 256, 128, 384, 1}, GroupedShape{2, 512, 256, 1024, 8},
        GroupedShape{8, 4096, 1024, 4096, 4}, GroupedShape{8, 4096, 1024, 4096, 5},
        GroupedShape{8, 4096, 1024, 4096, 6}, GroupedShape{8, 4096, 1024, 4096, 8}}) {
    for (const Format format : {Format::kFp8, Format::kMxFp8, Format::kBf16}) {
      Device device;
      const DeviceTensor x =
          device.Copy(DType::kBF16, {tokens, groups, cols}, Bf16s(Normals(tokens * groups * cols, 1)));
      const DeviceTensor between = device.New(DType::kBF16, {tokens, groups, rows});
      const DeviceTensor y = device.New(DType::kBF16, {tokens, dim});
      HostWeight of_groups = RandomHostWeight(format, groups * rows, cols, 2);
      of_groups.weight.activation = ActivationQuant::kNone;
      const Weight first = device.Prepare(of_groups.weight);
      const Weight second = RandomWeight(device, format, dim, groups * rows, 3);
      const TensorView given = TensorView::Contiguous(between.view.data, DType::kBF16,
                                                      {tokens, groups * rows}, device.memory().device());
      ExpectOneLaunch(
          device,
          FormatText(format) + ", " + std::to_string(groups) + " groups of " + std::to_string(rows) + ", " +
              std::to_string(tokens) + " tokens",
          [&] {
            return device.table().grouped_linear(device.context(),
                                                 {.x = x.view, .weight = &first, .y = between.view});
          },
          [&] {
            return device.table().linear(device.context(), {.x = given, .weight = &second, .y = y.view});
          },
          {&between, &y}, groups * rows == 8192 ? OneLaunch::kOnHopper : OneLaunch::kEverywhere);
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
