// hc_pre of four streams on the device: what it reads besides the streams, and what it gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda/device_tensors.h"

namespace dsv4::testing {

struct Mixes {
  static constexpr int64_t kMult = 4;
  static constexpr int64_t kRows = (2 + kMult) * kMult;

  // `values` are bf16 streams [num_tokens, kMult, dim].
  Mixes(Device& of, int64_t num_tokens, int64_t dim, const std::vector<uint16_t>& values)
      : device(of),
        streams(device.Copy(DType::kBF16, {num_tokens, kMult, dim}, values)),
        fn(device.Copy(DType::kF32, {kRows, kMult * dim}, Normals(kRows * kMult * dim, 2, 0.1F))),
        scale(device.Copy(DType::kF32, {3}, Normals(3, 3))),
        base(device.Copy(DType::kF32, {kRows}, Normals(kRows, 4))),
        u(device.New(DType::kBF16, {num_tokens, dim})),
        post(device.New(DType::kF32, {num_tokens, kMult})),
        comb(device.New(DType::kF32, {num_tokens, kMult, kMult})) {}

  Status Mix(const Cut& cut) const {
    return device.table().hc_pre(device.context(), {.streams = Rows(streams.view, cut),
                                                    .fn = fn.view,
                                                    .scale = scale.view,
                                                    .base = base.view,
                                                    .u = Rows(u.view, cut),
                                                    .post = Rows(post.view, cut),
                                                    .comb = Rows(comb.view, cut),
                                                    .norm_eps = 1e-6F,
                                                    .hc_eps = 1e-6F,
                                                    .sinkhorn_iters = 20});
  }
  void ExpectTheSame(const std::vector<Cut>& cuts) const {
    const std::string what = ", dim " + std::to_string(u.view.shape[1]);
    const auto mix = [&](const Cut& cut) { return Mix(cut); };
    ExpectTheSameInCuts(device, u.view, cuts, "u" + what, mix);
    ExpectTheSameInCuts(device, post.view, cuts, "post" + what, mix);
    ExpectTheSameInCuts(device, comb.view, cuts, "comb" + what, mix);
  }

  Device& device;
  DeviceTensor streams;
  DeviceTensor fn;
  DeviceTensor scale;
  DeviceTensor base;
  DeviceTensor u;
  DeviceTensor post;
  DeviceTensor comb;
};

}  // namespace dsv4::testing
