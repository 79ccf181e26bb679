// As cuda_many_tokens_test.cc, for the indexer's decode steps. Scores of a token or a few of many sequences
// over packed keys (indexer_decode.cu) have the bits of those over the same keys in bf16. Candidates of a
// rank that has half of the entries name every score there. Choices are made of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "formats/cache_rows.h"
#include "tests/cuda/device_tensors.h"

namespace dsv4::testing {
namespace {

constexpr int64_t kWidth = 128;
constexpr int64_t kHeads = 64;
constexpr int64_t kRowBytes = 68;
constexpr CacheFormat kPacked = CacheFormat::Fp4(kWidth, 32);

struct Case {
  std::string name;
  int64_t ratio;
  int64_t top_k;
  int64_t rows_per_page;
  std::vector<int64_t> first_positions;
  std::vector<int64_t> lengths;
  // Scales of a case: those of numbers near 1, or anything.
  bool any_scale = false;
  // Pages of packed keys begin so far behind 16 bytes.
  int64_t shift = 0;

  int64_t num_tokens() const {
    int64_t sum = 0;
    for (const int64_t length : lengths) sum += length;
    return sum;
  }
};

using Bytes = std::vector<std::byte>;

// `count` packed keys: random codes.
Bytes RandomKeys(int64_t count, bool any_scale, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes keys(static_cast<size_t>(count * kRowBytes));
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool is_scale = i % kRowBytes >= 64;
    const auto byte = static_cast<uint32_t>(random());
    // Every 16th key may be larger than what one product scales.
    const uint32_t near_one = i / kRowBytes % 16 == 7 ? 124 + byte % 12 : 124 + byte % 4;
    keys[i] = static_cast<std::byte>(is_scale && !any_scale ? near_one : byte % 256);
  }
  return keys;
}

// A sequence's keys, its pages from the last to the first.
class Keys {
 public:
  Keys(Device& device, const Bytes& keys, const Case& c, bool packed)
      : rows_per_page_(c.rows_per_page),
        num_rows_(std::ssize(keys) / kRowBytes),
        format_(packed ? kPacked : CacheFormat(DType::kBF16)) {
    const int64_t row_bytes = packed ? kRowBytes : kWidth * 2;
    const int64_t shift = packed ? c.shift : 0;
    const int64_t num_pages = (num_rows_ + rows_per_page_ - 1) / rows_per_page_;
    // Memory behind the last key is NaN.
    Bytes all(static_cast<size_t>(num_pages * rows_per_page_ * row_bytes + shift), std::byte{0xFF});
    std::vector<float> values(kWidth);
    const auto place = [&](int64_t row) {
      const int64_t page = num_pages - 1 - row / rows_per_page_;
      return all.data() + shift + (page * rows_per_page_ + row % rows_per_page_) * row_bytes;
    };
    for (int64_t row = 0; row < num_rows_; ++row) {
      const std::byte* const key = keys.data() + row * kRowBytes;
      if (packed) {
        std::copy(key, key + kRowBytes, place(row));
      } else {
        UnpackRow(kPacked, key, values);
        const std::vector<uint16_t> bits = Bf16s(values);
        std::copy_n(reinterpret_cast<const std::byte*>(bits.data()), row_bytes, place(row));
      }
    }
    tensor_ = device.Copy(DType::kU8, {std::ssize(all)}, all);
    for (int64_t page = 0; page < num_pages; ++page)
      pages_.push_back(tensor_.view.as<std::byte>() + shift +
                       (num_pages - 1 - page) * rows_per_page_ * row_bytes);
  }
  PagedRows rows() const {
    return {.pages = pages_,
            .rows_per_page = rows_per_page_,
            .num_rows = num_rows_,
            .width = kWidth,
            .format = format_};
  }

 private:
  int64_t rows_per_page_;
  int64_t num_rows_;
  CacheFormat format_;
  DeviceTensor tensor_;
  std::vector<void*> pages_;
};

struct Results {
  Bytes selected;
  Bytes candidates;
};

Results Choose(Device& device, const Case& c, const DeviceTensor& q, const DeviceTensor& weights,
               bool packed) {
  constexpr EntryShard kShard = {1, 2};
  std::vector<Keys> all;
  std::vector<Keys> here;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    const int64_t count = (c.first_positions[s] + c.lengths[s]) / c.ratio;
    const Bytes keys = RandomKeys(count, c.any_scale, static_cast<uint32_t>(s));
    Bytes of_shard;
    for (int64_t row = 0; row < kShard.NumRows(count); ++row) {
      const auto key = keys.begin() + kShard.Entry(row) * kRowBytes;
      of_shard.insert(of_shard.end(), key, key + kRowBytes);
    }
    all.emplace_back(device, keys, c, packed);
    here.emplace_back(device, of_shard, c, packed);
  }
  const auto sequences = [&](const std::vector<Keys>& keys) {
    std::vector<ops::IndexerSequence> list;
    int64_t begin = 0;
    for (size_t s = 0; s < keys.size(); ++s) {
      list.push_back({.token_begin = begin,
                      .num_tokens = c.lengths[s],
                      .first_position = c.first_positions[s],
                      .keys = keys[s].rows()});
      begin += c.lengths[s];
    }
    return list;
  };
  const DeviceTensor selected = device.New(DType::kI32, {c.num_tokens(), c.top_k});
  const DeviceTensor candidates = device.New(DType::kI64, {c.num_tokens(), c.top_k});
  const auto of_all = sequences(all);
  const auto of_here = sequences(here);
  Status status = device.table().indexer_select(device.context(), {.q = q.view,
                                                                   .weights = weights.view,
                                                                   .selected = selected.view,
                                                                   .ratio = c.ratio,
                                                                   .sequences = of_all});
  EXPECT_TRUE(status.ok()) << c.name << ": " << status.ToString();
  status = device.table().indexer_candidates(device.context(), {.q = q.view,
                                                                .weights = weights.view,
                                                                .candidates = candidates.view,
                                                                .ratio = c.ratio,
                                                                .shard = kShard,
                                                                .sequences = of_here});
  EXPECT_TRUE(status.ok()) << c.name << ": " << status.ToString();
  return {device.Bytes(selected.view), device.Bytes(candidates.view)};
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {"one token", 4, 512, 64, {40003}, {1}},
      {"a few tokens", 4, 512, 64, {20001, 4 * 5000}, {3, 5}},
      {"sequences of all lengths", 1, 700, 16, {}, {}},
      {"any scale", 1, 700, 48, {1300, 1100, 900, 1001, 1216}, {1, 1, 2, 1, 1}, true},
      {"pages that begin anywhere", 1, 700, 32, {1300, 1100, 900}, {1, 1, 1}, false, 4},
      {"more tokens than blocks run at once", 1, 600, 64, {}, {}},
  };
  for (int64_t s = 0; s < 61; ++s) {
    cases[2].first_positions.push_back(1390 - 17 * s);
    cases[2].lengths.push_back(1);
  }
  for (int64_t s = 0; s < 300; ++s) {
    cases[5].first_positions.push_back(600 + s);
    cases[5].lengths.push_back(1);
  }
  return cases;
}

TEST(CudaDecodeIndexer, PackedKeysGiveTheBitsOfWideOnes) {
  Device device;
  for (const Case& c : Cases()) {
    const DeviceTensor q = device.Copy(DType::kBF16, {c.num_tokens(), kHeads, kWidth},
                                       Bf16s(Normals(c.num_tokens() * kHeads * kWidth, 1)));
    const DeviceTensor weights =
        device.Copy(DType::kBF16, {c.num_tokens(), kHeads}, Bf16s(Normals(c.num_tokens() * kHeads, 2)));
    const Results wide = Choose(device, c, q, weights, false);
    const Results packed = Choose(device, c, q, weights, true);
    EXPECT_EQ(packed.selected, wide.selected) << c.name;
    EXPECT_EQ(packed.candidates, wide.candidates) << c.name;
    EXPECT_NE(wide.candidates, Bytes(wide.candidates.size())) << c.name;
  }
}

}  // namespace
}  // namespace dsv4::testing
