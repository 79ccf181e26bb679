// Which products of FP8 and MXFP4 weights multiply in FP8 on Hopper's tensor cores (wgmma) (gemm_tma_fp8.h,
// grouped_gemm_fp8.h). Its sums keep some 13 bits: 128 columns are added up there, and all else in fp32.
// Other results than by default, which widens weights and activations to bf16.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

enum class Fp8Products : uint8_t {
  kOff,
  kMany,  // FP8 from so many tokens on that it is faster. A token's bits then depend on how many tokens share a pass with it.
  kAll,  // FP8 for any number of tokens, so that a token's bits depend on nothing else; few tokens are slower.
};

}  // namespace dsv4::backend::cuda
