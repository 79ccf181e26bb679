// The panel kernels of every tier: both ways of packing, every remainder, and sums that depend on nothing but
// their vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "formats/number_formats.h"

namespace dsv4::backend::cpu {
namespace {

// Rows of bf16 numbers, in a dtype.
struct Rows {
  Rows(int64_t num_rows, int64_t width, bool as_bf16, uint32_t seed) : bf16(as_bf16), cols(width) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < num_rows * width; ++i) values.push_back(RoundToBf16(normal(random)));
    Pack();
  }
  void Pack() {
    bytes.clear();
    for (const float value : values) {
      const uint32_t bits = bf16 ? Bf16FromFloat(value) : std::bit_cast<uint32_t>(value);
      for (int byte = 0; byte < (bf16 ? 2 : 4); ++byte)
        bytes.push_back(static_cast<uint8_t>(bits >> (8 * byte)));
    }
  }
  Rows Transposed() const {
    Rows turned = *this;
    const int64_t num_rows = static_cast<int64_t>(values.size()) / cols;
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t c = 0; c < cols; ++c)
        turned.values[static_cast<size_t>(c * num_rows + r)] = values[static_cast<size_t>(r * cols + c)];
    }
    turned.cols = num_rows;
    turned.Pack();
    return turned;
  }
  std::vector<const uint8_t*> Pointers() const {
    std::vector<const uint8_t*> pointers;
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(cols * (bf16 ? 2 : 4)))
      pointers.push_back(&bytes[at]);
    return pointers;
  }

  bool bf16;
  int64_t cols;
  std::vector<float> values;
  std::vector<uint8_t> bytes;
};

struct Tier {
  std::string name;
  PanelKernels panels;
  bool bf16;
};

std::vector<Tier> Tiers() {
  std::vector<Tier> tiers;
  for (const Isa isa : AvailableIsas()) {
    const Kernels kernels = KernelsFor(isa);
    for (const bool bf16 : {false, true})
      tiers.push_back({std::string(IsaName(isa)), kernels.float_panels, bf16});
    if (kernels.bf16_panels.lanes > 0)
      tiers.push_back({std::string(IsaName(isa)), kernels.bf16_panels, true});
  }
  return tiers;
}

TEST(PanelKernels, ProductsOfEveryDepth) {
  for (const Tier& tier : Tiers()) {
    const PanelKernels& panels = tier.panels;
    SCOPED_TRACE(tier.name + (tier.bf16 ? ", bf16 rows, step " : ", fp32 rows, step ") +
                 std::to_string(panels.step));
    for (const int64_t depth : {1, 2, 3, 15, 16, 17, 31, 32, 33, 127, 255, 256, 257, 258, 600}) {
      const int64_t num_a = std::max<int64_t>(1, panels.lanes - 1);
      const int64_t num_b = 2 * panels.lanes + 1;
      const Rows a(num_a, depth, tier.bf16, static_cast<uint32_t>(depth));
      const Rows b(num_b, depth, tier.bf16, static_cast<uint32_t>(depth + 1000));
      const int64_t bytes = panels.PanelBytes(depth);
      const int64_t num_panels = 3;
      std::vector<uint8_t> packed_a(static_cast<size_t>(bytes));
      std::vector<uint8_t> packed_b(static_cast<size_t>(num_panels * bytes));
      std::vector<uint8_t> turned_b(packed_b.size());
      panels.pack_lanes(a.Pointers().data(), num_a, tier.bf16, depth, packed_a.data());
      std::vector<const uint8_t*> b_rows = b.Pointers();
      for (int64_t p = 0; p < num_panels; ++p) {
        panels.pack_lanes(b_rows.data() + p * panels.lanes, std::min(panels.lanes, num_b - p * panels.lanes),
                          tier.bf16, depth, packed_b.data() + p * bytes);
      }
      const Rows columns = b.Transposed();
      panels.pack_columns(columns.Pointers().data(), depth, tier.bf16, 0, num_b, turned_b.data(), bytes);
      EXPECT_EQ(turned_b, packed_b) << depth;

      const int64_t stride = num_panels * panels.lanes + 3;
      std::vector<float> out(static_cast<size_t>(panels.lanes * stride), -7.0F);
      panels.multiply(packed_a.data(), packed_b.data(), bytes, num_panels, depth, num_a, false, out.data(),
                      stride);
      for (int64_t r = 0; r < panels.lanes; ++r) {
        for (int64_t c = 0; c < stride; ++c) {
          const float got = out[static_cast<size_t>(r * stride + c)];
          if (r >= num_a || c >= num_panels * panels.lanes) {
            ASSERT_EQ(got, -7.0F) << "outside";
            continue;
          }
          double want = 0;
          double magnitude = 0;
          for (int64_t k = 0; c < num_b && k < depth; ++k) {
            const double product = static_cast<double>(a.values[static_cast<size_t>(r * depth + k)]) *
                                   static_cast<double>(b.values[static_cast<size_t>(c * depth + k)]);
            want += product;
            magnitude += std::fabs(product);
          }
          const auto roundings = static_cast<double>(std::min(depth, kPanelRun) + depth / kPanelRun);
          ASSERT_LE(std::fabs(static_cast<double>(got) - want), roundings * 0x1p-24 * magnitude) << depth;
        }
      }
      // Added to what is there.
      std::vector<float> twice = out;
      panels.multiply(packed_a.data(), packed_b.data(), bytes, num_panels, depth, num_a, true, twice.data(),
                      stride);
      if (depth <= kPanelRun) {
        EXPECT_EQ(twice[0], out[0] + out[0]);
      }
      // One pair of rows alone, and null rows around it.
      std::vector<const uint8_t*> only(static_cast<size_t>(panels.lanes), nullptr);
      only[static_cast<size_t>(panels.lanes - 1)] = b_rows[0];
      panels.pack_lanes(only.data(), panels.lanes, tier.bf16, depth, packed_b.data());
      std::vector<float> alone(static_cast<size_t>(panels.lanes * panels.lanes));
      panels.multiply(packed_a.data(), packed_b.data(), bytes, 1, depth, num_a, false, alone.data(),
                      panels.lanes);
      EXPECT_EQ(alone[static_cast<size_t>(panels.lanes - 1)], out[0]) << depth;
      if (panels.lanes > 1) {
        EXPECT_EQ(alone[0], 0.0F);
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::backend::cpu
