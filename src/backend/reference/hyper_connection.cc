// Reference hc_pre, hc_post and hc_head: mixing logits, Sinkhorn iterations and the mix of streams, in
// double.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// m[k] = g * sum_j fn[k, j] x[j] for one token's flattened streams. The product is with the un-normalised x.
// The norm is a factor taken over all streams at once.
std::vector<double> MixLogits(std::span<const double> x, const std::vector<double>& fn, float norm_eps) {
  const int64_t width = static_cast<int64_t>(x.size());
  const double mean_square = Dot(x.data(), x.data(), width) / static_cast<double>(width);
  const double factor = 1.0 / std::sqrt(mean_square + static_cast<double>(norm_eps));
  std::vector<double> logits(fn.size() / x.size());
  for (size_t k = 0; k < logits.size(); ++k)
    logits[k] = factor * Dot(fn.data() + k * x.size(), x.data(), width);
  return logits;
}

// u = sum_i pre[i] * stream i.
std::vector<double> MixStreams(std::span<const double> pre, std::span<const double> streams) {
  const size_t dim = streams.size() / pre.size();
  std::vector<double> mixed(dim, 0.0);
  for (size_t i = 0; i < pre.size(); ++i) AddScaled(pre[i], streams.subspan(i * dim, dim), mixed);
  return mixed;
}

// Row-softmax plus eps, then alternating normalisation, columns first; `iterations` counts that first pair.
void Sinkhorn(std::span<double> comb, size_t size, double eps, int iterations) {
  const auto normalize_rows = [&] {
    for (size_t i = 0; i < size; ++i) {
      double sum = 0.0;
      for (size_t j = 0; j < size; ++j) sum += comb[i * size + j];
      for (size_t j = 0; j < size; ++j) comb[i * size + j] /= sum + eps;
    }
  };
  const auto normalize_columns = [&] {
    for (size_t j = 0; j < size; ++j) {
      double sum = 0.0;
      for (size_t i = 0; i < size; ++i) sum += comb[i * size + j];
      for (size_t i = 0; i < size; ++i) comb[i * size + j] /= sum + eps;
    }
  };
  for (size_t i = 0; i < size; ++i) {
    const std::span<double> row = comb.subspan(i * size, size);
    const double max = *std::max_element(row.begin(), row.end());
    double sum = 0.0;
    for (double& value : row) sum += value = std::exp(value - max);
    for (double& value : row) value = value / sum + eps;
  }
  normalize_columns();
  for (int iteration = 1; iteration < iterations; ++iteration) {
    normalize_rows();
    normalize_columns();
  }
}

}  // namespace

Status HcPre(ops::OpContext& context, const ops::HcPreArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t hc_mult = args.streams.shape[1];
  const size_t mult = static_cast<size_t>(hc_mult);
  const double hc_eps = static_cast<double>(args.hc_eps);
  const std::vector<double> fn = LoadAll(args.fn);
  const std::vector<double> scale = LoadAll(args.scale);
  const std::vector<double> base = LoadAll(args.base);
  context.threads().ParallelFor(args.streams.shape[0], 1, [&](int64_t begin, int64_t end) {
    std::vector<double> streams(static_cast<size_t>(hc_mult * args.streams.shape[2]));
    std::vector<double> pre(mult);
    std::vector<double> post(mult);
    std::vector<double> comb(mult * mult);
    for (int64_t t = begin; t < end; ++t) {
      LoadRow(args.streams, t, streams);
      const std::vector<double> m = MixLogits(streams, fn, args.norm_eps);
      for (size_t i = 0; i < mult; ++i) {
        pre[i] = Sigmoid(m[i] * scale[0] + base[i]) + hc_eps;
        post[i] = 2.0 * Sigmoid(m[mult + i] * scale[1] + base[mult + i]);
      }
      for (size_t i = 0; i < comb.size(); ++i) comb[i] = m[2 * mult + i] * scale[2] + base[2 * mult + i];
      Sinkhorn(comb, mult, hc_eps, args.sinkhorn_iters);
      if (!args.pre.is_null()) StoreRow(pre, args.pre, t);
      if (!args.given.is_null()) LoadRow(args.given, t, pre);
      StoreRow(MixStreams(pre, streams), args.u, t);
      StoreRow(post, args.post, t);
      StoreRow(comb, args.comb, t);
    }
  });
  return {};
}

Status HcPost(ops::OpContext& context, const ops::HcPostArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const size_t mult = static_cast<size_t>(args.residual.shape[1]);
  const size_t dim = static_cast<size_t>(args.residual.shape[2]);
  context.threads().ParallelFor(args.residual.shape[0], 4, [&](int64_t begin, int64_t end) {
    std::vector<double> y(dim);
    std::vector<double> residual(mult * dim);
    std::vector<double> post(mult);
    std::vector<double> comb(mult * mult);
    std::vector<double> out(mult * dim);
    for (int64_t t = begin; t < end; ++t) {
      LoadRow(args.y, t, y);
      LoadRow(args.residual, t, residual);
      LoadRow(args.post, t, post);
      LoadRow(args.comb, t, comb);
      std::fill(out.begin(), out.end(), 0.0);
      for (size_t j = 0; j < mult; ++j) {
        const std::span<double> stream = std::span(out).subspan(j * dim, dim);
        AddScaled(post[j], y, stream);
        for (size_t i = 0; i < mult; ++i) {
          AddScaled(comb[i * mult + j], std::span(residual).subspan(i * dim, dim), stream);
        }
      }
      StoreRow(out, args.out, t);
    }
  });
  return {};
}

Status HcHead(ops::OpContext& context, const ops::HcHeadArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t hc_mult = args.streams.shape[1];
  if (!args.given.is_null()) {
    std::vector<double> streams(static_cast<size_t>(hc_mult * args.streams.shape[2]));
    std::vector<double> given(static_cast<size_t>(hc_mult));
    for (int64_t t = 0; t < args.streams.shape[0]; ++t) {
      LoadRow(args.streams, t, streams);
      LoadRow(args.given, t, given);
      StoreRow(MixStreams(given, streams), args.y, t);
    }
    return {};
  }
  const std::vector<double> fn = LoadAll(args.fn);
  const std::vector<double> base = LoadAll(args.base);
  const double scale = LoadAll(args.scale)[0];
  context.threads().ParallelFor(args.streams.shape[0], 1, [&](int64_t begin, int64_t end) {
    std::vector<double> streams(static_cast<size_t>(hc_mult * args.streams.shape[2]));
    for (int64_t t = begin; t < end; ++t) {
      LoadRow(args.streams, t, streams);
      std::vector<double> pre = MixLogits(streams, fn, args.norm_eps);
      for (size_t i = 0; i < pre.size(); ++i) {
        pre[i] = Sigmoid(pre[i] * scale + base[i]) + static_cast<double>(args.hc_eps);
      }
      StoreRow(MixStreams(pre, streams), args.y, t);
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
