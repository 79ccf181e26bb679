// Ops that treat rows or elements one by one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"
#include "formats/cache_rows.h"

namespace dsv4::backend::cpu {

namespace {

// Rows to hand a thread at a time: a loop of threads that are awake costs about as much as 4096 elements.
int64_t RowGrain(int64_t width) {
  constexpr int64_t kElementsPerTask = 1 << 12;
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, width));
}

}  // namespace

Status Embed(ops::OpContext& context, const ops::EmbedArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.token_ids.shape[0];
  const int64_t vocab_size = args.table.shape[0];
  const int64_t dim = args.table.shape[1];
  const int64_t hc_mult = args.streams.shape[1];
  const Kernels& kernels = KernelsOf(context);
  std::vector<float> row(static_cast<size_t>(dim));
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t id = LoadInteger(args.token_ids, t);
    if (id < 0 || id >= vocab_size) {
      return OutOfRange(fmt::format("op embed: token_ids[{}]: {}, want 0 to {}", t, id, vocab_size - 1));
    }
    LoadFloats(kernels, At(args.table.data, args.table.dtype, id * args.table.strides[0]), args.table.dtype,
               dim, row.data());
    for (int64_t i = 0; i < hc_mult; ++i) {
      StoreFloats(kernels, row.data(), dim,
                  args.streams.as<uint8_t>() + (t * hc_mult + i) * dim * ElementBytes(args.streams.dtype),
                  args.streams.dtype);
    }
  }
  return {};
}

Status RmsNorm(ops::OpContext& context, const ops::RmsNormArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t dim = args.x.shape[1];
  const Kernels& kernels = KernelsOf(context);
  const std::vector<float> weight = LoadAll(kernels, args.weight);
  context.threads().ParallelFor(args.x.shape[0], RowGrain(dim), [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(dim));
    for (int64_t row = begin; row < end; ++row) {
      LoadFloats(kernels, At(args.x.data, args.x.dtype, row * args.x.strides[0]), args.x.dtype, dim,
                 x.data());
      const double mean_square = kernels.rows.sum_squares(x.data(), dim, false) / static_cast<double>(dim);
      const double factor = 1.0 / std::sqrt(mean_square + static_cast<double>(args.eps));
      kernels.rows.scale(x.data(), weight.data(), dim, factor, x.data());
      StoreFloats(kernels, x.data(), dim,
                  args.y.as<uint8_t>() + row * args.y.strides[0] * ElementBytes(args.y.dtype), args.y.dtype);
    }
  });
  return {};
}

Status HeadRmsNorm(ops::OpContext& context, const ops::HeadRmsNormArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const DType dtype = args.x.dtype;
  const int64_t head_dim = args.x.shape[2];
  const Kernels& kernels = KernelsOf(context);
  context.threads().ParallelFor(
      args.x.shape[0] * args.x.shape[1], RowGrain(head_dim), [&](int64_t begin, int64_t end) {
        std::vector<float> x(static_cast<size_t>(head_dim));
        for (int64_t row = begin; row < end; ++row) {
          LoadFloats(kernels, At(args.x.data, dtype, row * head_dim), dtype, head_dim, x.data());
          // As the release: with bf16, the square, the mean, + eps, the root and the product are tensors of
          // their own.
          const double sum = kernels.rows.sum_squares(x.data(), head_dim, dtype == DType::kBF16);
          const double mean = HeldAs(dtype, sum / static_cast<double>(head_dim));
          const double shifted = HeldAs(dtype, mean + static_cast<double>(args.eps));
          const double factor = HeldAs(dtype, 1.0 / std::sqrt(shifted));
          kernels.rows.scale(x.data(), nullptr, head_dim, factor, x.data());
          StoreFloats(kernels, x.data(), head_dim,
                      args.y.as<uint8_t>() + row * head_dim * ElementBytes(dtype), dtype);
        }
      });
  return {};
}

Status Scale(ops::OpContext& context, const ops::ScaleArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  std::vector<float> x = LoadAll(kernels, args.x);
  for (float& value : x) value *= args.factor;
  StoreFloats(kernels, x.data(), args.x.num_elements(), args.y.data, args.y.dtype);
  return {};
}

Status Swiglu(ops::OpContext& context, const ops::SwigluArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t width = args.gate.shape[1];
  const DType dtype = args.gate.dtype;
  const Kernels& kernels = KernelsOf(context);
  constexpr int64_t kCost = 4;  // The exponential makes an element worth several of other ops.
  context.threads().ParallelFor(args.gate.shape[0], RowGrain(kCost * width), [&](int64_t begin, int64_t end) {
    std::vector<float> gate(static_cast<size_t>(width));
    std::vector<float> up(gate.size());
    for (int64_t t = begin; t < end; ++t) {
      LoadFloats(kernels, At(args.gate.data, dtype, t * width), dtype, width, gate.data());
      LoadFloats(kernels, At(args.up.data, dtype, t * width), dtype, width, up.data());
      const double weight =
          args.row_weights.is_null() ? 1.0 : static_cast<double>(args.row_weights.as<const float>()[t]);
      kernels.rows.swiglu(gate.data(), up.data(), width, static_cast<double>(args.limit), weight,
                          gate.data());
      StoreFloats(kernels, gate.data(), width, args.y.as<uint8_t>() + t * width * ElementBytes(dtype), dtype);
    }
  });
  return {};
}

Status MoeCombine(ops::OpContext& context, const ops::MoeCombineArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t dim = args.routed.shape[1];
  const DType dtype = args.y.dtype;
  const Kernels& kernels = KernelsOf(context);
  context.threads().ParallelFor(args.routed.shape[0], RowGrain(dim), [&](int64_t begin, int64_t end) {
    std::vector<float> routed(static_cast<size_t>(dim));
    std::vector<float> shared(routed.size());
    for (int64_t t = begin; t < end; ++t) {
      LoadFloats(kernels, At(args.routed.data, DType::kF32, t * dim), DType::kF32, dim, routed.data());
      if (args.shared.is_null()) {
        std::ranges::fill(shared, 0.0F);
      } else {
        LoadFloats(kernels, At(args.shared.data, dtype, t * dim), dtype, dim, shared.data());
      }
      for (size_t i = 0; i < shared.size(); ++i) shared[i] += routed[i];
      StoreFloats(kernels, shared.data(), dim, args.y.as<uint8_t>() + t * dim * ElementBytes(dtype), dtype);
    }
  });
  return {};
}

namespace {

// Rows [begin, end) of the source, counted over all runs.
Status PackRows(const Kernels& kernels, const ops::StoreRowsArgs& args, int64_t begin, int64_t end) {
  const int64_t width = args.source.shape[1];
  const int64_t row_bytes = args.StoredBytes();
  std::vector<float> values(static_cast<size_t>(width));
  int64_t first = 0;  // A run's.
  for (const ops::RowRun& run : args.runs) {
    for (int64_t i = std::max(begin - first, int64_t{0}); i < std::min(run.num_rows, end - first); ++i) {
      const int64_t row = run.source_begin + i;
      LoadFloats(kernels, At(args.source.data, args.source.dtype, row * width), args.source.dtype, width,
                 values.data());
      DSV4_RETURN_IF_ERROR(
          PackRow(*args.pack, values, static_cast<std::byte*>(run.destination) + i * row_bytes)
              .WithContext(fmt::format("op store_rows: row {}", row)));
    }
    first += run.num_rows;
  }
  return {};
}

}  // namespace

Status StoreRows(ops::OpContext& context, const ops::StoreRowsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.pack.has_value()) {
    int64_t num_rows = 0;
    for (const ops::RowRun& run : args.runs) num_rows += run.num_rows;
    constexpr int64_t kGrain = 16;
    std::vector<Status> statuses(static_cast<size_t>((num_rows + kGrain - 1) / kGrain));
    const auto num_parts = static_cast<int64_t>(statuses.size());
    context.threads().ParallelFor(num_parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        statuses[static_cast<size_t>(part)] =
            PackRows(KernelsOf(context), args, part * kGrain, std::min(num_rows, (part + 1) * kGrain));
      }
    });
    const auto failed =
        std::find_if(statuses.begin(), statuses.end(), [](const Status& s) { return !s.ok(); });
    return failed == statuses.end() ? Status() : *failed;
  }
  const int64_t row_bytes = args.StoredBytes();
  for (const ops::RowRun& run : args.runs) {
    if (run.num_rows == 0 || row_bytes == 0) continue;
    std::memcpy(run.destination, args.source.as<const uint8_t>() + run.source_begin * row_bytes,
                static_cast<size_t>(run.num_rows * row_bytes));
  }
  return {};
}

Status GatherRows(ops::OpContext&, const ops::GatherRowsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  ops::ForEachStretch(args, [](const std::byte* from, std::byte* to, int64_t num_bytes) {
    std::memcpy(to, from, static_cast<size_t>(num_bytes));
  });
  return {};
}

}  // namespace dsv4::backend::cpu
