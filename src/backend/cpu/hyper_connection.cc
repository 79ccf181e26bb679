// Ops hc_pre, hc_post and hc_head, in double. So are the products with the [24, 4 * dim] fp32 matrix of
// hc_pre: the Sinkhorn iterations start from the reference's numbers. Many tokens are taken tile by tile, all
// work of a tile while it is in the cache. For few tokens the columns are split, so that all threads read the
// matrix.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

constexpr int64_t kHcTileTokens = 4;

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

struct StreamShape {
  explicit StreamShape(const TensorView& view)
      : num_tokens(view.shape[0]), hc_mult(view.shape[1]), dim(view.shape[2]) {}
  int64_t width() const { return hc_mult * dim; }

  int64_t num_tokens;
  int64_t hc_mult;
  int64_t dim;
};

const uint8_t* StreamAt(const TensorView& streams, int64_t token, int64_t stream, int64_t column) {
  const int64_t row = token * streams.shape[1] + stream;
  return At(streams.data, streams.dtype, row * streams.shape[2] + column);
}

// Sums that a slice of columns adds to the sums of tokens: the products with each row, and the squares.
struct SliceSums {
  SliceSums(int64_t num_tokens, int64_t num_rows)
      : products(static_cast<size_t>(num_tokens * num_rows)), squares(static_cast<size_t>(num_tokens)) {}
  std::vector<double> products;
  std::vector<double> squares;
};

// m[t, k] = g * sum_j fn[k, j] x[j]: the product is with the un-normalised x, g the norm over all streams at
// once. Calls finish(first_token, m of that token on, number of tokens), on any thread. Sums are those of
// slices, added in order, however the work is split: every thread reads its own columns of both operands.
template <typename Finish>
void MixLogits(ops::OpContext& context, const TensorView& streams, const TensorView& fn, float norm_eps,
               const Finish& finish) {
  constexpr int64_t kSliceColumns = 512;
  const Kernels& kernels = KernelsOf(context);
  const StreamShape shape(streams);
  const int64_t width = shape.width();
  const int64_t num_rows = fn.shape[0];
  const int64_t num_slices = (width + kSliceColumns - 1) / kSliceColumns;
  // `x` holds kSliceColumns for each token.
  const auto add_up = [&](int64_t slice, int64_t first_token, int64_t num_tokens, float* x, SliceSums& sums) {
    const int64_t first = slice * kSliceColumns;
    const int64_t columns = std::min(kSliceColumns, width - first);
    for (int64_t t = 0; t < num_tokens; ++t) {
      float* const of_token = x + t * columns;
      LoadFloats(kernels, At(streams.data, streams.dtype, (first_token + t) * width + first), streams.dtype,
                 columns, of_token);
      sums.squares[static_cast<size_t>(t)] = kernels.rows.sum_squares(of_token, columns, false);
    }
    kernels.rows.dot_rows(At(fn.data, DType::kF32, first), width, num_rows, columns, x, num_tokens,
                          sums.products.data());
  };
  const auto normalize = [&](double squares, double* m) {
    const double factor =
        1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(norm_eps));
    for (int64_t k = 0; k < num_rows; ++k) m[k] *= factor;
  };
  const int64_t num_tiles = (shape.num_tokens + kHcTileTokens - 1) / kHcTileTokens;
  if (num_tiles >= 2 * context.threads().num_threads()) {
    context.threads().ParallelFor(num_tiles, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> x(static_cast<size_t>(kHcTileTokens * kSliceColumns));
      SliceSums slice_sums(kHcTileTokens, num_rows);
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t first = tile * kHcTileTokens;
        const int64_t count = std::min(kHcTileTokens, shape.num_tokens - first);
        SliceSums sums(count, num_rows);
        for (int64_t slice = 0; slice < num_slices; ++slice) {
          add_up(slice, first, count, x.data(), slice_sums);
          for (size_t i = 0; i < sums.products.size(); ++i) sums.products[i] += slice_sums.products[i];
          for (size_t t = 0; t < sums.squares.size(); ++t) sums.squares[t] += slice_sums.squares[t];
        }
        for (int64_t t = 0; t < count; ++t)
          normalize(sums.squares[static_cast<size_t>(t)], sums.products.data() + t * num_rows);
        finish(first, sums.products.data(), count);
      }
    });
    return;
  }
  std::vector<SliceSums> slices(static_cast<size_t>(num_slices), SliceSums(shape.num_tokens, num_rows));
  context.threads().ParallelFor(num_slices, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(shape.num_tokens * kSliceColumns));
    for (int64_t slice = begin; slice < end; ++slice)
      add_up(slice, 0, shape.num_tokens, x.data(), slices[static_cast<size_t>(slice)]);
  });
  context.threads().ParallelFor(shape.num_tokens, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> m(static_cast<size_t>(num_rows));
    for (int64_t t = begin; t < end; ++t) {
      std::ranges::fill(m, 0.0);
      double squares = 0;
      for (const SliceSums& slice : slices) {
        squares += slice.squares[static_cast<size_t>(t)];
        for (int64_t k = 0; k < num_rows; ++k)
          m[static_cast<size_t>(k)] += slice.products[static_cast<size_t>(t * num_rows + k)];
      }
      normalize(squares, m.data());
      finish(t, m.data(), 1);
    }
  });
}

// u = sum_i pre[i] * stream i, rounded to its dtype.
void MixStreams(const Kernels& kernels, const double* pre, const TensorView& streams, int64_t token,
                const TensorView& u) {
  const StreamShape shape(streams);
  std::array<const uint8_t*, kMaxMixRows> in = {};
  for (int64_t i = 0; i < shape.hc_mult; ++i) in[static_cast<size_t>(i)] = StreamAt(streams, token, i, 0);
  uint8_t* const out = u.as<uint8_t>() + token * shape.dim * ElementBytes(u.dtype);
  kernels.rows.mix_rows(in.data(), shape.hc_mult, u.dtype == DType::kBF16, pre, 1, shape.dim, &out);
}

// Row-softmax plus eps, then alternating normalisation, columns first; `iterations` counts that first pair. A
// line is multiplied by the inverse of its sum: one division instead of `size`.
void Sinkhorn(std::span<double> comb, size_t size, double eps, int iterations) {
  const auto normalize = [&](size_t line_stride, size_t item_stride) {
    for (size_t line = 0; line < size; ++line) {
      double* const items = &comb[line * line_stride];
      double sum = eps;
      for (size_t item = 0; item < size; ++item) sum += items[item * item_stride];
      const double inverse = 1.0 / sum;
      for (size_t item = 0; item < size; ++item) items[item * item_stride] *= inverse;
    }
  };
  for (size_t i = 0; i < size; ++i) {
    const std::span<double> row = comb.subspan(i * size, size);
    const double max = *std::max_element(row.begin(), row.end());
    double sum = 0.0;
    for (double& value : row) sum += value = std::exp(value - max);
    for (double& value : row) value = value / sum + eps;
  }
  normalize(1, size);
  for (int iteration = 1; iteration < iterations; ++iteration) {
    normalize(size, 1);
    normalize(1, size);
  }
}

}  // namespace

Status HcPre(ops::OpContext& context, const ops::HcPreArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.streams.shape[0] == 0) return {};
  const Kernels& kernels = KernelsOf(context);
  const int64_t hc_mult = args.streams.shape[1];
  const size_t mult = static_cast<size_t>(hc_mult);
  const double hc_eps = static_cast<double>(args.hc_eps);
  const std::vector<float> scale = LoadAll(kernels, args.scale);
  const std::vector<float> base = LoadAll(kernels, args.base);
  MixLogits(context, args.streams, args.fn, args.norm_eps,
            [&](int64_t first_token, const double* logits, int64_t num_tokens) {
              std::vector<double> pre(mult);
              std::vector<double> comb(mult * mult);
              for (int64_t t = first_token; t < first_token + num_tokens; ++t, logits += base.size()) {
                const auto at = [&](size_t k, size_t part) {
                  return logits[k] * static_cast<double>(scale[part]) + static_cast<double>(base[k]);
                };
                float* const post = args.post.as<float>() + t * hc_mult;
                for (size_t i = 0; i < mult; ++i) {
                  pre[i] = Sigmoid(at(i, 0)) + hc_eps;
                  post[i] = static_cast<float>(2.0 * Sigmoid(at(mult + i, 1)));
                }
                for (size_t i = 0; i < comb.size(); ++i) comb[i] = at(2 * mult + i, 2);
                Sinkhorn(comb, mult, hc_eps, args.sinkhorn_iters);
                std::transform(comb.begin(), comb.end(), args.comb.as<float>() + t * hc_mult * hc_mult,
                               [](double value) { return static_cast<float>(value); });
                if (!args.pre.is_null())
                  std::ranges::transform(pre, args.pre.as<float>() + t * hc_mult,
                                         [](double value) { return static_cast<float>(value); });
                if (!args.given.is_null())
                  std::copy_n(args.given.as<const float>() + t * hc_mult, hc_mult, pre.begin());
                MixStreams(kernels, pre.data(), args.streams, t, args.u);
              }
            });
  return {};
}

Status HcPost(ops::OpContext& context, const ops::HcPostArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  static_assert(ops::kMaxHcMult + 1 <= kMaxMixRows);
  const Kernels& kernels = KernelsOf(context);
  const int64_t hc_mult = args.residual.shape[1];
  const int64_t dim = args.residual.shape[2];
  const DType dtype = args.residual.dtype;
  // A task is a slice of a token's columns: each output column needs only the same column of y and of the
  // streams.
  constexpr int64_t kColumns = 512;
  const int64_t slices = (dim + kColumns - 1) / kColumns;
  context.threads().ParallelFor(args.residual.shape[0] * slices, 1, [&](int64_t begin, int64_t end) {
    // Row j of the factors makes output stream j: of y first, then of the residual streams.
    std::vector<double> factors(static_cast<size_t>(hc_mult * (hc_mult + 1)));
    std::array<const uint8_t*, kMaxMixRows> in = {};
    std::array<uint8_t*, kMaxMixRows> out = {};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / slices;
      const int64_t first = i % slices * kColumns;
      in[0] = At(args.y.data, dtype, t * dim + first);
      for (int64_t j = 0; j < hc_mult; ++j) {
        double* const row = factors.data() + j * (hc_mult + 1);
        row[0] = static_cast<double>(args.post.as<const float>()[t * hc_mult + j]);
        for (int64_t h = 0; h < hc_mult; ++h)
          row[h + 1] = static_cast<double>(args.comb.as<const float>()[(t * hc_mult + h) * hc_mult + j]);
        in[static_cast<size_t>(j + 1)] = StreamAt(args.residual, t, j, first);
        out[static_cast<size_t>(j)] =
            args.out.as<uint8_t>() + ((t * hc_mult + j) * dim + first) * ElementBytes(dtype);
      }
      kernels.rows.mix_rows(in.data(), hc_mult + 1, dtype == DType::kBF16, factors.data(), hc_mult,
                            std::min(dim - first, kColumns), out.data());
    }
  });
  return {};
}

Status HcHead(ops::OpContext& context, const ops::HcHeadArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.streams.shape[0] == 0) return {};
  const Kernels& kernels = KernelsOf(context);
  if (!args.given.is_null()) {
    const int64_t hc_mult = args.streams.shape[1];
    context.threads().ParallelFor(args.streams.shape[0], 4, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float* const given = args.given.as<const float>() + t * hc_mult;
        const std::vector<double> weights(given, given + hc_mult);
        MixStreams(kernels, weights.data(), args.streams, t, args.y);
      }
    });
    return {};
  }
  const std::vector<float> base = LoadAll(kernels, args.base);
  const double scale = static_cast<double>(LoadAll(kernels, args.scale)[0]);
  MixLogits(context, args.streams, args.fn, args.norm_eps,
            [&](int64_t first_token, const double* logits, int64_t num_tokens) {
              std::vector<double> pre(base.size());
              for (int64_t t = first_token; t < first_token + num_tokens; ++t, logits += base.size()) {
                for (size_t i = 0; i < pre.size(); ++i) {
                  pre[i] = Sigmoid(logits[i] * scale + static_cast<double>(base[i])) +
                           static_cast<double>(args.hc_eps);
                }
                MixStreams(kernels, pre.data(), args.streams, t, args.y);
              }
            });
  return {};
}

}  // namespace dsv4::backend::cpu
