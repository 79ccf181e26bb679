// hc_pre, hc_post and hc_head. The mixing products stream a [24, 4 * dim] fp32 matrix, in double: at the speed of memory
// there is time for it, and the Sinkhorn iterations then start from the reference's numbers.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// All residual streams of a step as fp32, one row of hc_mult * dim a token.
struct Streams {
  Streams(ops::OpContext& context, const TensorView& view)
      : hc_mult(view.shape[1]), dim(view.shape[2]), num_tokens(view.shape[0]) {
    values.resize(static_cast<size_t>(num_tokens * width()));
    context.threads().ParallelFor(num_tokens, 4, [&](int64_t begin, int64_t end) {
      LoadFloats(KernelsOf(context), At(view.data, view.dtype, begin * width()), view.dtype,
                 (end - begin) * width(), values.data() + begin * width());
    });
  }
  int64_t width() const { return hc_mult * dim; }
  const float* Row(int64_t token) const { return values.data() + token * width(); }

  int64_t hc_mult;
  int64_t dim;
  int64_t num_tokens;
  std::vector<float> values;
};

// m[t, k] = g * sum_j fn[k, j] x[j]: the product is with the un-normalised x, g the norm over all streams at once.
std::vector<double> MixLogits(ops::OpContext& context, const Streams& streams, const TensorView& fn,
                              float norm_eps) {
  const Kernels& kernels = KernelsOf(context);
  const int64_t num_rows = fn.shape[0];
  const int64_t width = streams.width();
  std::vector<double> dots(static_cast<size_t>(streams.num_tokens * (num_rows + 1)));
  // Column 0 of a token is the sum of squares. One token is split by rows, so that all threads read the matrix.
  constexpr int64_t kProductsPerTask = 1 << 15;
  const int64_t grain = std::max<int64_t>(1, kProductsPerTask / std::max<int64_t>(1, width));
  context.threads().ParallelFor(streams.num_tokens * (num_rows + 1), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token =
          i % streams.num_tokens;  // Tokens inside: a matrix row meets all of them while it is near.
      const int64_t row = i / streams.num_tokens;
      const float* const x = streams.Row(token);
      const uint8_t* const from =
          row == 0 ? reinterpret_cast<const uint8_t*>(x) : At(fn.data, DType::kF32, (row - 1) * width);
      kernels.dot_rows(from, 1, width, x, &dots[static_cast<size_t>(token * (num_rows + 1) + row)]);
    }
  });
  std::vector<double> logits(static_cast<size_t>(streams.num_tokens * num_rows));
  for (int64_t t = 0; t < streams.num_tokens; ++t) {
    const double* const row = dots.data() + t * (num_rows + 1);
    const double factor =
        1.0 / std::sqrt(row[0] / static_cast<double>(width) + static_cast<double>(norm_eps));
    for (int64_t k = 0; k < num_rows; ++k)
      logits[static_cast<size_t>(t * num_rows + k)] = factor * row[k + 1];
  }
  return logits;
}

// u = sum_i pre[i] * stream i, rounded to its dtype.
void MixStreams(std::span<const double> pre, const Streams& streams, int64_t token, const TensorView& u) {
  const size_t dim = static_cast<size_t>(streams.dim);
  std::vector<double> mixed(dim, 0.0);
  for (size_t i = 0; i < pre.size(); ++i) {
    const float* const stream = streams.Row(token) + static_cast<int64_t>(i) * streams.dim;
    for (size_t d = 0; d < dim; ++d) mixed[d] += pre[i] * static_cast<double>(stream[d]);
  }
  StoreDoubles(mixed.data(), streams.dim, u.as<uint8_t>() + token * streams.dim * ElementBytes(u.dtype),
               u.dtype);
}

// Row-softmax plus eps, then alternating normalisation, columns first; `iterations` counts that first pair.
void Sinkhorn(std::span<double> comb, size_t size, double eps, int iterations) {
  const auto normalize = [&](size_t line_stride, size_t item_stride) {
    for (size_t line = 0; line < size; ++line) {
      double sum = 0.0;
      for (size_t item = 0; item < size; ++item) sum += comb[line * line_stride + item * item_stride];
      for (size_t item = 0; item < size; ++item) comb[line * line_stride + item * item_stride] /= sum + eps;
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
  const Streams streams(context, args.streams);
  const size_t mult = static_cast<size_t>(streams.hc_mult);
  const double hc_eps = static_cast<double>(args.hc_eps);
  const std::vector<float> scale = LoadAll(kernels, args.scale);
  const std::vector<float> base = LoadAll(kernels, args.base);
  const std::vector<double> logits = MixLogits(context, streams, args.fn, args.norm_eps);
  context.threads().ParallelFor(streams.num_tokens, 4, [&](int64_t begin, int64_t end) {
    std::vector<double> pre(mult);
    std::vector<double> post(mult);
    std::vector<double> comb(mult * mult);
    for (int64_t t = begin; t < end; ++t) {
      const double* const m = logits.data() + static_cast<size_t>(t) * base.size();
      const auto at = [&](size_t k, size_t part) {
        return m[k] * static_cast<double>(scale[part]) + static_cast<double>(base[k]);
      };
      for (size_t i = 0; i < mult; ++i) {
        pre[i] = Sigmoid(at(i, 0)) + hc_eps;
        post[i] = 2.0 * Sigmoid(at(mult + i, 1));
      }
      for (size_t i = 0; i < comb.size(); ++i) comb[i] = at(2 * mult + i, 2);
      Sinkhorn(comb, mult, hc_eps, args.sinkhorn_iters);
      MixStreams(pre, streams, t, args.u);
      const int64_t h = streams.hc_mult;
      StoreDoubles(post.data(), h, args.post.as<float>() + t * h, DType::kF32);
      StoreDoubles(comb.data(), h * h, args.comb.as<float>() + t * h * h, DType::kF32);
    }
  });
  return {};
}

Status HcPost(ops::OpContext& context, const ops::HcPostArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  const int64_t hc_mult = args.residual.shape[1];
  const int64_t dim = args.residual.shape[2];
  const DType dtype = args.residual.dtype;
  // A task is a slice of a token's columns: each output column needs only the same column of y and of the streams.
  constexpr int64_t kColumns = 1024;
  const int64_t slices = (dim + kColumns - 1) / kColumns;
  context.threads().ParallelFor(args.residual.shape[0] * slices, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> y(kColumns);
    std::vector<float> residual(static_cast<size_t>(hc_mult * kColumns));
    std::vector<double> out(kColumns);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / slices;
      const int64_t first = i % slices * kColumns;
      const int64_t count = std::min(dim - first, kColumns);
      LoadFloats(kernels, At(args.y.data, dtype, t * dim + first), dtype, count, y.data());
      for (int64_t h = 0; h < hc_mult; ++h) {
        LoadFloats(kernels, At(args.residual.data, dtype, (t * hc_mult + h) * dim + first), dtype, count,
                   residual.data() + h * kColumns);
      }
      for (int64_t j = 0; j < hc_mult; ++j) {
        const double post = static_cast<double>(args.post.as<const float>()[t * hc_mult + j]);
        for (int64_t d = 0; d < count; ++d) {
          out[static_cast<size_t>(d)] = post * static_cast<double>(y[static_cast<size_t>(d)]);
        }
        for (int64_t h = 0; h < hc_mult; ++h) {
          const double factor =
              static_cast<double>(args.comb.as<const float>()[(t * hc_mult + h) * hc_mult + j]);
          const float* const stream = residual.data() + h * kColumns;
          for (int64_t d = 0; d < count; ++d)
            out[static_cast<size_t>(d)] += factor * static_cast<double>(stream[d]);
        }
        StoreDoubles(out.data(), count,
                     args.out.as<uint8_t>() + ((t * hc_mult + j) * dim + first) * ElementBytes(dtype), dtype);
      }
    }
  });
  return {};
}

Status HcHead(ops::OpContext& context, const ops::HcHeadArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.streams.shape[0] == 0) return {};
  const Kernels& kernels = KernelsOf(context);
  const Streams streams(context, args.streams);
  const std::vector<float> base = LoadAll(kernels, args.base);
  const double scale = static_cast<double>(LoadAll(kernels, args.scale)[0]);
  std::vector<double> pre = MixLogits(context, streams, args.fn, args.norm_eps);
  context.threads().ParallelFor(streams.num_tokens, 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const std::span<double> row = std::span(pre).subspan(static_cast<size_t>(t) * base.size(), base.size());
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = Sigmoid(row[i] * scale + static_cast<double>(base[i])) + static_cast<double>(args.hc_eps);
      }
      MixStreams(row, streams, t, args.y);
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
