// Linears of which one gives the other its activations are one launch, in which all blocks meet (linear_stream.h): the results are those
// of each alone.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cuda/one_launch.h"

namespace dsv4::testing {
namespace {

// The output of groups of heads, and what follows it: FP8 whose activations stay as they are, then FP8 whose are rounded.
TEST(CudaFusedLinears, GroupsAndALinearOfWhatTheyGive) {
  struct GroupedShape {
    int64_t groups;
    int64_t cols;
    int64_t rows;  // Of a group.
    int64_t dim;
    int64_t tokens;
  };
  // One GPU's and a part of the release's shape; fewer tiles than processors; several tokens.
  for (const auto& [groups, cols, rows, dim, tokens] :
       {GroupedShape{8, 4096, 1024, 4096, 1}, GroupedShape{4, 4096, 1024, 4096, 1},
        GroupedShape{3, 256, 128, 384, 1}, GroupedShape{2, 512, 256, 1024, 8}}) {
    for (const Format format : {Format::kFp8, Format::kBf16}) {
      for (const ActivationQuant activation : {ActivationQuant::kNone, ActivationQuant::kFp8Block}) {
        if (format == Format::kBf16 && activation != ActivationQuant::kNone) continue;
        Device device;
        const DeviceTensor x =
            device.Copy(DType::kBF16, {tokens, groups, cols}, Bf16s(Normals(tokens * groups * cols, 1)));
        const DeviceTensor between = device.New(DType::kBF16, {tokens, groups, rows});
        const DeviceTensor y = device.New(DType::kBF16, {tokens, dim});
        HostWeight of_groups = RandomHostWeight(format, groups * rows, cols, 2);
        of_groups.weight.activation = activation;
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
            {&between, &y});
      }
    }
  }
}

// Linears of the same row, a norm of what one of them gives, and linears of the normed row; also where nothing follows the norm.
TEST(CudaFusedLinears, LinearsANormAndLinearsOfTheNormedRow) {
  struct NormShape {
    int64_t dim;
    int64_t width;  // Of the normed row.
    int64_t rows;   // Of what follows.
  };
  for (const auto& [dim, width, rows] : {NormShape{4096, 1024, 16384}, NormShape{7168, 1536, 4096},
                                         NormShape{512, 384, 192}, NormShape{1024, 4096, 512}}) {
    for (const bool bf16_beside : {true, false}) {
      for (const int linears : {2, 1, 0}) {
        Device device;
        const DeviceTensor x = device.Copy(DType::kBF16, {1, dim}, Bf16s(Normals(dim, 1)));
        const DeviceTensor beside = device.New(DType::kF32, {1, 256});
        const DeviceTensor row = device.New(DType::kBF16, {1, width});
        const DeviceTensor norm = device.Copy(DType::kF32, {width}, Normals(width, 2));
        const DeviceTensor y = device.New(DType::kBF16, {1, rows});
        const DeviceTensor other = device.New(DType::kF32, {1, 128});
        const Weight of_row = RandomWeight(device, Format::kFp8, width, dim, 3);
        const Weight of_beside =
            RandomWeight(device, bf16_beside ? Format::kBf16 : Format::kFp8, 256, dim, 4);
        const Weight of_y = RandomWeight(device, Format::kFp8, rows, width, 5);
        const Weight of_other = RandomWeight(device, Format::kFp8, 128, width, 6);
        std::vector<const DeviceTensor*> written = {&row, &beside};
        if (linears > 0) written.push_back(&y);
        if (linears > 1) written.push_back(&other);
        ExpectOneLaunch(
            device,
            "dim " + std::to_string(dim) + ", norm of " + std::to_string(width) + ", " +
                std::to_string(linears) + " linears behind",
            [&] {
              const Status status =
                  device.table().linear(device.context(), {.x = x.view, .weight = &of_row, .y = row.view});
              if (!status.ok()) return status;
              return device.table().linear(device.context(),
                                           {.x = x.view, .weight = &of_beside, .y = beside.view});
            },
            [&] {
              Status status = device.table().rms_norm(
                  device.context(), {.x = row.view, .weight = norm.view, .y = row.view, .eps = 1e-6F});
              if (status.ok() && linears > 0) {
                status =
                    device.table().linear(device.context(), {.x = row.view, .weight = &of_y, .y = y.view});
              }
              if (status.ok() && linears > 1) {
                status = device.table().linear(device.context(),
                                               {.x = row.view, .weight = &of_other, .y = other.view});
              }
              return status;
            },
            written);
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
