// Mistakes 1 to 5: the hyper-connections.
#include <algorithm>
#include <cmath>
#include <functional>

#include "formats/number_formats.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

enum class Fault : uint8_t {
  kSplitOrder,
  kStartExp,
  kStartSigmoid,
  kFirstRow,
  kExtraPass,
  kNoEps,
  kPreNoEps,
  kPostEps,
  kPostNoFactor,
  kBf16Product,
  kNormalisedProduct,
  kNormPerStream,
  kNormalisedSum,
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Bf16(double x) { return static_cast<double>(RoundToBf16(static_cast<float>(x))); }

template <Fault F>
std::vector<double> Sinkhorn(std::vector<double> c, size_t h, double eps, int iterations) {
  const double guard = F == Fault::kNoEps ? 0 : eps;
  const auto normalise = [&](size_t outer, size_t inner) {
    for (size_t a = 0; a < h; ++a) {
      double sum = 0;
      for (size_t b = 0; b < h; ++b) sum += c[a * outer + b * inner];
      for (size_t b = 0; b < h; ++b) c[a * outer + b * inner] /= sum + guard;
    }
  };
  for (size_t i = 0; i < h; ++i) {
    double sum = 0;
    for (size_t j = 0; j < h; ++j) sum += std::exp(c[i * h + j]);
    for (size_t j = 0; j < h; ++j) {
      double& value = c[i * h + j];
      if (F == Fault::kStartExp) {
        value = std::exp(value);
      } else if (F == Fault::kStartSigmoid) {
        value = Sigmoid(value) + eps;
      } else {
        value = std::exp(value) / sum + eps;
      }
    }
  }
  if (F != Fault::kFirstRow) normalise(1, h);
  for (int i = 1; i < iterations + (F == Fault::kExtraPass ? 1 : 0); ++i) {
    normalise(h, 1);
    normalise(1, h);
  }
  return c;
}

// The mixing products of one token.
template <Fault F>
std::vector<double> Mix(const double* x, const std::vector<double>& fn, size_t h, size_t d, double norm_eps) {
  const size_t width = h * d;
  const auto norm = [&](size_t begin, size_t count) {
    double square = 0;
    for (size_t i = begin; i < begin + count; ++i) square += x[i] * x[i];
    return 1 / std::sqrt(square / static_cast<double>(count) + norm_eps);
  };
  const double whole = norm(0, width);
  std::vector<double> per_stream(h);
  for (size_t i = 0; i < h; ++i) per_stream[i] = norm(i * d, d);
  std::vector<double> m(fn.size() / width);
  for (size_t k = 0; k < m.size(); ++k) {
    double sum = 0;
    for (size_t j = 0; j < width; ++j) {
      double weight = fn[k * width + j];
      double value = x[j];
      if (F == Fault::kBf16Product) weight = Bf16(weight);
      if (F == Fault::kNormalisedProduct) value = Bf16(value * whole);
      if (F == Fault::kNormPerStream) value *= per_stream[j / d];
      sum += weight * value;
    }
    if (F == Fault::kBf16Product) sum = Bf16(sum);
    m[k] = F == Fault::kNormalisedProduct || F == Fault::kNormPerStream ? sum : sum * whole;
  }
  return m;
}

template <Fault F>
Status HcPre(ops::OpContext&, const ops::HcPreArgs& args) {
  const auto h = static_cast<size_t>(args.streams.shape[1]);
  const auto d = static_cast<size_t>(args.streams.shape[2]);
  const std::vector<double> x = Values(args.streams);
  const std::vector<double> fn = Values(args.fn);
  const std::vector<double> scale = Values(args.scale);
  const std::vector<double> base = Values(args.base);
  const double eps = static_cast<double>(args.hc_eps);
  const bool swapped = F == Fault::kSplitOrder;
  const size_t post_at = swapped ? h + h * h : h;
  const size_t comb_at = swapped ? h : 2 * h;
  std::vector<double> u;
  std::vector<double> posts;
  std::vector<double> combs;
  for (size_t t = 0; t < static_cast<size_t>(args.streams.shape[0]); ++t) {
    const double* token = x.data() + t * h * d;
    const std::vector<double> m = Mix<F>(token, fn, h, d, static_cast<double>(args.norm_eps));
    std::vector<double> mixed(d, 0.0);
    double square = 0;
    for (size_t i = 0; i < h * d; ++i) square += token[i] * token[i];
    const double norm =
        1 / std::sqrt(square / static_cast<double>(h * d) + static_cast<double>(args.norm_eps));
    for (size_t i = 0; i < h; ++i) {
      const double pre = Sigmoid(m[i] * scale[0] + base[i]) + (F == Fault::kPreNoEps ? 0 : eps);
      for (size_t c = 0; c < d; ++c) {
        mixed[c] += pre * token[i * d + c] * (F == Fault::kNormalisedSum ? norm : 1);
      }
      const double post = Sigmoid(m[post_at + i] * scale[swapped ? 2 : 1] + base[post_at + i]);
      posts.push_back((F == Fault::kPostNoFactor ? 1 : 2) * post + (F == Fault::kPostEps ? eps : 0));
    }
    u.insert(u.end(), mixed.begin(), mixed.end());
    std::vector<double> logits(h * h);
    for (size_t i = 0; i < h * h; ++i)
      logits[i] = m[comb_at + i] * scale[swapped ? 1 : 2] + base[comb_at + i];
    const std::vector<double> comb = Sinkhorn<F>(logits, h, eps, args.sinkhorn_iters);
    combs.insert(combs.end(), comb.begin(), comb.end());
  }
  SetValues(args.u, u);
  SetValues(args.post, posts);
  SetValues(args.comb, combs);
  return {};
}

Status StraightComb(ops::OpContext& context, const ops::HcPostArgs& args) {
  ops::HcPostArgs wrong = args;
  const std::vector<double> right = Values(args.comb);
  std::vector<float> comb(right.size());
  const auto h = static_cast<size_t>(args.comb.shape[1]);
  for (size_t i = 0; i < comb.size(); ++i) {
    const size_t token = i / (h * h);
    comb[i] = static_cast<float>(right[token * h * h + i % h * h + i / h % h]);
  }
  wrong.comb = TensorView::Contiguous(comb.data(), DType::kF32, args.comb.shape);
  return Right().hc_post(context, wrong);
}

template <Fault F>
SeededMistake Pre() {
  return {
      .mutation = {.parts = {}, .ops = [](ops::OpTable& table) { table.hc_pre = HcPre<F>; }, .options = {}}};
}

}  // namespace

void AddHyperConnectionMistakes(SeededMistakes& mistakes) {
  mistakes["01-split-order"] = Pre<Fault::kSplitOrder>();
  mistakes["02-comb-straight"].mutation.ops = [](ops::OpTable& table) { table.hc_post = StraightComb; };
  mistakes["03-sinkhorn-exp"] = Pre<Fault::kStartExp>();
  mistakes["03-sinkhorn-sigmoid"] = Pre<Fault::kStartSigmoid>();
  mistakes["03-sinkhorn-first-row"] = Pre<Fault::kFirstRow>();
  mistakes["03-sinkhorn-extra"] = Pre<Fault::kExtraPass>();
  mistakes["03-sinkhorn-no-eps"] = Pre<Fault::kNoEps>();
  mistakes["04-pre-no-eps"] = Pre<Fault::kPreNoEps>();
  mistakes["04-post-eps"] = Pre<Fault::kPostEps>();
  mistakes["04-post-no-factor"] = Pre<Fault::kPostNoFactor>();
  mistakes["05-hc-bf16"] = Pre<Fault::kBf16Product>();
  mistakes["05-hc-prenormalised"] = Pre<Fault::kNormalisedProduct>();
  mistakes["05-hc-norm-per-stream"] = Pre<Fault::kNormPerStream>();
  mistakes["05-hc-normalised-sum"] = Pre<Fault::kNormalisedSum>();
}

}  // namespace dsv4::testing
