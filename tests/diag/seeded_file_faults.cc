// Checkpoints that are wrong in one way: what a converter or a loader gets wrong, done to the file.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "formats/number_formats.h"
#include "tests/diag/seeded_faults.h"

namespace dsv4::testing {
namespace {

constexpr int kNumExperts = 16;

std::span<float> Floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<uint16_t> Bf16s(std::span<std::byte> bytes) {
  return {reinterpret_cast<uint16_t*>(bytes.data()), bytes.size() / sizeof(uint16_t)};
}

void ForEachExpert(int layer, const std::function<void(const std::string& expert)>& change) {
  for (int e = 0; e < kNumExperts; ++e) change(fmt::format("layers.{}.ffn.experts.{}.", layer, e));
}

void SwapBytes(std::span<std::byte> a, std::span<std::byte> b) {
  std::swap_ranges(a.begin(), a.end(), b.begin());
}

// Both sides of a matrix of bytes, [rows, columns].
void TransposeLayout(std::span<std::byte> bytes, size_t rows) {
  const std::vector<std::byte> old(bytes.begin(), bytes.end());
  const size_t columns = bytes.size() / rows;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = old[i % rows * columns + i / rows];
}

}  // namespace

std::vector<FileFault> SeededFileFaults() {
  std::vector<FileFault> faults;
  const auto add = [&](const std::string& name, Expected expected, auto damage) {
    faults.push_back({.name = name, .damage = damage, .expected = std::move(expected)});
  };
  const auto configure = [&](const std::string& name, const std::string& from, const std::string& to,
                             Expected expected) {
    faults.push_back({.name = name,
                      .damage = [](const TensorBytes&) {},
                      .config_from = from,
                      .config_to = to,
                      .expected = std::move(expected)});
  };
  add("weight_scale_2 of one expert dropped", {"compare", 3, "routed_experts"},
      [](const TensorBytes& tensor) {
        ForEachExpert(3, [&](const std::string& expert) {
          if (expert.ends_with(".5.")) Floats(tensor(expert + "w1.weight_scale_2"))[0] = 1;
        });
      });
  add("w1 and w3 swapped", {"compare", 2, "routed_experts"}, [](const TensorBytes& tensor) {
    ForEachExpert(2, [&](const std::string& expert) {
      for (const char* part : {"weight", "weight_scale", "weight_scale_2"}) {
        SwapBytes(tensor(expert + "w1." + part), tensor(expert + "w3." + part));
      }
    });
  });
  add("nibbles swapped", {"compare", 1, "routed_experts"}, [](const TensorBytes& tensor) {
    ForEachExpert(1, [&](const std::string& expert) {
      for (std::byte& byte : tensor(expert + "w2.weight")) byte = byte << 4 | byte >> 4;
    });
  });
  add("block scales walked column by column", {"compare", 0, "routed_experts"},
      [](const TensorBytes& tensor) {
        ForEachExpert(
            0, [&](const std::string& expert) { TransposeLayout(tensor(expert + "w1.weight_scale"), 128); });
      });
  add("block scales of a dense layer one row off", {"compare", 2, "linear"}, [](const TensorBytes& tensor) {
    const std::span<std::byte> scales = tensor("layers.2.attn.wq_b.scale");
    std::rotate(scales.begin(), scales.begin() + 1, scales.end());
    scales[0] = static_cast<std::byte>(std::to_integer<int>(scales[0]) + 1);
  });
  add("groups of wo_a swapped", {"compare", 1, "grouped_linear"}, [](const TensorBytes& tensor) {
    for (const char* part : {"layers.1.attn.wo_a.weight", "layers.1.attn.wo_a.scale"}) {
      const std::span<std::byte> bytes = tensor(part);
      std::rotate(bytes.begin(), bytes.begin() + static_cast<int64_t>(bytes.size() / 2), bytes.end());
    }
  });
  add("comb transposed", {"compare", 1, "hc_pre"}, [](const TensorBytes& tensor) {
    const std::span<float> base = Floats(tensor("layers.1.hc_attn_base"));
    const std::span<float> fn = Floats(tensor("layers.1.hc_attn_fn"));
    const size_t width = fn.size() / base.size();
    for (size_t i = 0; i < 4; ++i) {
      for (size_t j = 0; j < i; ++j) {
        const size_t a = 8 + i * 4 + j;
        const size_t b = 8 + j * 4 + i;
        std::swap(base[a], base[b]);
        std::swap_ranges(fn.begin() + static_cast<int64_t>(a * width),
                         fn.begin() + static_cast<int64_t>((a + 1) * width),
                         fn.begin() + static_cast<int64_t>(b * width));
      }
    }
  });
  add("sinks of another layer", {"compare", 3, "attention"}, [](const TensorBytes& tensor) {
    SwapBytes(tensor("layers.3.attn.attn_sink"), tensor("layers.5.attn.attn_sink"));
  });
  add("ape shifted by one position", {"compare", 2, "compressor_pool"}, [](const TensorBytes& tensor) {
    const std::span<std::byte> ape = tensor("layers.2.attn.compressor.ape");
    std::rotate(ape.begin(), ape.begin() + static_cast<int64_t>(ape.size() / 4), ape.end());
  });
  add("wkv and wgate of the compressor swapped", {"compare", 3, "linear"}, [](const TensorBytes& tensor) {
    SwapBytes(tensor("layers.3.attn.compressor.wkv.weight"), tensor("layers.3.attn.compressor.wgate.weight"));
  });
  add("key norm of another layer", {"compare", 2, "rms_norm"}, [](const TensorBytes& tensor) {
    SwapBytes(tensor("layers.2.attn.kv_norm.weight"), tensor("layers.6.attn.kv_norm.weight"));
  });
  add("hash table permuted", {"compare", 0, "router"}, [](const TensorBytes& tensor) {
    const std::span<std::byte> table = tensor("layers.0.ffn.gate.tid2eid");
    std::rotate(table.begin(), table.begin() + 32, table.end());  // The row of the next id.
  });
  add("router bias dropped", {"compare", 2, "router"}, [](const TensorBytes& tensor) {
    for (float& bias : Floats(tensor("layers.2.ffn.gate.bias"))) bias = 0;
  });
  add("final norm left at one", {"compare", -1, "rms_norm"}, [](const TensorBytes& tensor) {
    for (uint16_t& weight : Bf16s(tensor("norm.weight"))) weight = Bf16FromFloat(1);
  });
  add("embedding one row off", {"compare", -1, "embed"}, [](const TensorBytes& tensor) {
    const std::span<std::byte> table = tensor("embed.weight");
    std::rotate(table.begin(), table.begin() + 512, table.end());
  });
  add("head one row off", {"compare", -1, "linear"}, [](const TensorBytes& tensor) {
    const std::span<std::byte> table = tensor("head.weight");
    std::rotate(table.begin(), table.begin() + 512, table.end());
  });
  configure("window of another model", "\"sliding_window\": 128", "\"sliding_window\": 64",
            {"compare", 0, "attention"});
  configure("route scale of another model", "\"routed_scaling_factor\": 1.5",
            "\"routed_scaling_factor\": 2.5", {"compare", 0, "router"});
  configure("compressed theta of the window", "\"compress_rope_theta\": 160000",
            "\"compress_rope_theta\": 10000", {"compare", 2, "rope"});
  configure("one Sinkhorn pass", "\"hc_sinkhorn_iters\": 20", "\"hc_sinkhorn_iters\": 1",
            {"compare", 0, "hc_pre"});

  // Without a dump only what no training leaves can be told.
  faults.push_back(faults[1]);
  faults.back().name += ", no dump";
  faults.back().with_dump = false;
  faults.back().expected = {.check = "checkpoint", .layer = 2};
  add("a weight of zeros", {"checkpoint", 2, "", "layers.2"}, [](const TensorBytes& tensor) {
    const std::span<std::byte> weight = tensor("layers.2.attn.wo_b.weight");
    std::fill(weight.begin(), weight.end(), std::byte{0});
  });
  faults.back().with_dump = false;
  add("weight_scale_2 for its inverse", {"checkpoint", 1, "", "layers.1"}, [](const TensorBytes& tensor) {
    float& scale = Floats(tensor("layers.1.ffn.experts.7.w2.weight_scale_2"))[0];
    scale = 1 / scale;
  });
  faults.back().with_dump = false;
  return faults;
}

}  // namespace dsv4::testing
