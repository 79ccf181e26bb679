// As cuda_many_tokens_test.cc, of the indexer: the scores of many tokens of few sequences (indexer_wgmma.cu)
// have the bits of those of a few. Candidates of a rank that has half of the entries name every score there;
// choices are made of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/device_tensors.h"

namespace dsv4::testing {
namespace {

constexpr int64_t kWidth = 128;
constexpr uint16_t kNaN = 0x7FC0;
constexpr uint16_t kInfinity = 0x7F80;

struct Case {
  std::string name;
  int64_t heads;
  int64_t ratio;
  int64_t top_k;
  int64_t rows_per_page;
  std::vector<int64_t> first_positions;
  std::vector<int64_t> lengths;
  int64_t few = 20;  // As many tokens are too few for the kernel that is tested.
  int64_t num_tokens() const {
    int64_t sum = 0;
    for (const int64_t length : lengths) sum += length;
    return sum;
  }
};

// The keys of a sequence, pages from the last to the first, with NaN, which nobody may look at, behind the
// last key.
class Keys {
 public:
  Keys(Device& device, const std::vector<uint16_t>& keys, int64_t rows_per_page)
      : rows_per_page_(rows_per_page), num_rows_(std::ssize(keys) / kWidth) {
    const int64_t num_pages = (num_rows_ + rows_per_page - 1) / rows_per_page;
    const int64_t page = rows_per_page * kWidth;
    std::vector<uint16_t> all(static_cast<size_t>(num_pages * page + kWidth), kNaN);
    for (int64_t i = 0; i < num_pages; ++i) {
      std::copy(keys.begin() + i * page, keys.begin() + std::min(std::ssize(keys), (i + 1) * page),
                all.begin() + (num_pages - 1 - i) * page);
    }
    tensor_ = device.Copy(DType::kBF16, {num_pages * rows_per_page + 1, kWidth}, all);
    for (int64_t i = 0; i < num_pages; ++i)
      pages_.push_back(tensor_.view.as<uint16_t>() + (num_pages - 1 - i) * page);
  }
  PagedRows rows() const {
    return {.pages = pages_, .rows_per_page = rows_per_page_, .num_rows = num_rows_, .width = kWidth};
  }

 private:
  int64_t rows_per_page_;
  int64_t num_rows_;
  DeviceTensor tensor_;
  std::vector<void*> pages_;
};

struct Numbers {
  std::vector<uint16_t> q;
  std::vector<uint16_t> weights;
  std::vector<std::vector<uint16_t>> keys;  // Keys of each sequence, as many as the last token sees.
};

int64_t NumKeys(const Case& c, size_t sequence) {
  return (c.first_positions[sequence] + c.lengths[sequence]) / c.ratio;
}

// Small integers make many equal scores.
Numbers Plain(const Case& c, bool tied) {
  const auto draw = [&](int64_t count, uint32_t seed) {
    std::vector<float> values = Normals(count, seed);
    if (tied) {
      for (float& value : values) value = std::nearbyint(value);
    }
    return Bf16s(values);
  };
  Numbers numbers = {draw(c.num_tokens() * c.heads * kWidth, 1), draw(c.num_tokens() * c.heads, 2), {}};
  for (uint32_t s = 0; s < c.lengths.size(); ++s) numbers.keys.push_back(draw(NumKeys(c, s) * kWidth, 3 + s));
  return numbers;
}

// Queries of 64 heads that look at one column each, so that a key is the list of its terms but for the
// weights. Some terms cancel, some decide between two neighbours from far below. Some are too large or too
// small for fp32, and some are no numbers.
Numbers InDoubt(const Case& c) {
  std::mt19937 random(7);
  const auto draw = [&](int limit) { return static_cast<int>(random() % static_cast<uint32_t>(limit)); };
  const auto power = [&](int exponent) {
    return std::ldexp(static_cast<float>(128 + draw(128)) / 128.0F, exponent);
  };
  Numbers numbers;
  std::vector<float> q(static_cast<size_t>(c.num_tokens() * c.heads * kWidth), 0.0F);
  std::vector<float> weights;
  for (int64_t token = 0; token < c.num_tokens(); ++token) {
    for (int64_t h = 0; h < c.heads; ++h) {
      q[static_cast<size_t>((token * c.heads + h) * kWidth + h)] = token % 7 == 3 ? 0x1p10F : 1.0F;
      const float sign = (token % 2 == 0 ? h % 2 == 0 : draw(2) == 0) ? 1.0F : -1.0F;
      weights.push_back(token % 5 == 4 ? sign * power(-3) : sign);
      if (token % 11 == 10) weights.back() = 1.0F;
      if (token % 29 == 28) weights.back() = 0.0F;
    }
  }
  numbers.q = Bf16s(q);
  numbers.weights = Bf16s(weights);
  numbers.q[static_cast<size_t>(17 * c.heads * kWidth + 5)] = kNaN;
  numbers.q[static_cast<size_t>(18 * c.heads * kWidth + 200)] = kInfinity;
  numbers.weights[static_cast<size_t>(33 * c.heads + 9)] = kNaN;
  numbers.weights[static_cast<size_t>(34 * c.heads + 10)] = kInfinity;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    std::vector<float> keys;
    for (int64_t key = 0; key < NumKeys(c, s); ++key) {
      std::vector<float> terms(kWidth, 0.0F);
      const int spread = 1 + draw(40);
      for (int64_t i = 0; i < kWidth; ++i) {
        float& term = terms[static_cast<size_t>(i)];
        switch (key % 9) {
          case 0:
            term = power(-draw(spread)) * (draw(3) == 0 ? -1.0F : 1.0F);
            break;
          case 1:  // Halfway between two numbers in bf16, but for little.
            term = i == 0 ? 1.0F : (i == 2 ? 0x1p-8F : (draw(3) == 0 ? power(-10 - draw(40)) : 0.0F));
            break;
          case 2:  // Below what fp32 has beside the largest, all of them.
            term = i == 0 ? 1.0F : (i == 2 ? 0x1p-8F : power(-24 - draw(6)));
            break;
          case 3:  // Cancels where weights alternate, but for a few.
            term = i % 2 == 1 && draw(40) != 0 ? terms[static_cast<size_t>(i - 1)] : power(-draw(spread));
            break;
          case 4:
            break;
          case 5:
            term = power(-120 - draw(14));
            break;
          case 6:
            term = power(110 + draw(18));
            break;
          case 7:  // Farther apart than a double reaches.
            term = power(60 - draw(120));
            break;
          default:  // Nothing is positive, or one is.
            term = i == 5 && draw(2) == 0 ? power(-draw(spread)) : -power(-draw(spread));
        }
      }
      keys.insert(keys.end(), terms.begin(), terms.end());
    }
    numbers.keys.push_back(Bf16s(keys));
    std::vector<uint16_t>& bits = numbers.keys.back();
    const int64_t last = NumKeys(c, s) - 1;
    bits[static_cast<size_t>(last / 2 * kWidth + 3)] = kNaN;
    bits[static_cast<size_t>(last / 3 * kWidth + 70)] = kInfinity;
    bits[static_cast<size_t>(last / 4 * kWidth + 4)] = kInfinity | 0x8000;
  }
  return numbers;
}

// Tokens of each sequence in a cut.
std::vector<ops::IndexerSequence> Sequences(const Case& c, const std::vector<Keys>& keys, const Cut& cut) {
  std::vector<ops::IndexerSequence> sequences;
  int64_t begin = 0;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    const int64_t from = std::max(begin, cut.begin);
    const int64_t to = std::max(from, std::min(begin + c.lengths[s], cut.end));
    sequences.push_back({.token_begin = std::min(from, cut.end) - cut.begin,
                         .num_tokens = to - from,
                         .first_position = c.first_positions[s] + std::min(from - begin, c.lengths[s]),
                         .keys = keys[s].rows()});
    begin += c.lengths[s];
  }
  return sequences;
}

void ExpectTheBitsOfFew(Device& device, const Case& c, const Numbers& numbers, const std::string& what) {
  const int64_t num_tokens = c.num_tokens();
  const DeviceTensor q = device.Copy(DType::kBF16, {num_tokens, c.heads, kWidth}, numbers.q);
  const DeviceTensor weights = device.Copy(DType::kBF16, {num_tokens, c.heads}, numbers.weights);
  std::vector<Cut> cuts;
  for (int64_t begin = 0; begin < num_tokens; begin += c.few)
    cuts.push_back({begin, std::min(num_tokens, begin + c.few)});
  {
    std::vector<Keys> keys;
    for (const std::vector<uint16_t>& of_sequence : numbers.keys)
      keys.emplace_back(device, of_sequence, c.rows_per_page);
    const DeviceTensor selected = device.New(DType::kI32, {num_tokens, c.top_k});
    ExpectTheSameInCuts(device, selected.view, cuts, c.name + ", " + what + ", select", [&](const Cut& cut) {
      const auto sequences = Sequences(c, keys, cut);
      return device.table().indexer_select(device.context(), {.q = Rows(q.view, cut),
                                                              .weights = Rows(weights.view, cut),
                                                              .selected = Rows(selected.view, cut),
                                                              .ratio = c.ratio,
                                                              .sequences = sequences});
    });
  }
  // Every other entry.
  const EntryShard shard = {1, 2};
  std::vector<Keys> keys;
  for (const std::vector<uint16_t>& of_sequence : numbers.keys) {
    std::vector<uint16_t> here;
    for (int64_t row = 0; row < shard.NumRows(std::ssize(of_sequence) / kWidth); ++row) {
      const auto key = of_sequence.begin() + shard.Entry(row) * kWidth;
      here.insert(here.end(), key, key + kWidth);
    }
    keys.emplace_back(device, here, c.rows_per_page);
  }
  const DeviceTensor candidates = device.New(DType::kI64, {num_tokens, c.top_k});
  ExpectTheSameInCuts(
      device, candidates.view, cuts, c.name + ", " + what + ", candidates", [&](const Cut& cut) {
        const auto sequences = Sequences(c, keys, cut);
        return device.table().indexer_candidates(device.context(), {.q = Rows(q.view, cut),
                                                                    .weights = Rows(weights.view, cut),
                                                                    .candidates = Rows(candidates.view, cut),
                                                                    .ratio = c.ratio,
                                                                    .shard = shard,
                                                                    .sequences = sequences});
      });
}

// 130 tokens of up to 1024 entries, or correspondingly fewer of more, are many.
const std::vector<Case> kCases = {
    {"all scores", 64, 1, 600, 61, {905}, {141}},
    {"around top_k and tiles", 64, 4, 256, 64, {900}, {517}},
    {"a page a row", 64, 1, 128, 1, {100}, {150}},
    {"one page", 64, 4, 512, 4000, {9000}, {99}},
    {"several sequences", 64, 1, 100, 7, {150, 0, 99, 400, 320}, {61, 40, 2, 43, 35}},
    {"many entries", 64, 4, 1000, 128, {20401}, {33}, 12},
    {"very many entries", 64, 4, 512, 128, {300000}, {36}, 3},
    {"many tiles a block", 64, 2, 512, 53, {0}, {4500}},
    {"fewer heads", 48, 1, 600, 61, {905}, {141}},
};

TEST(CudaManyTokens, IndexerScoresGiveTheBitsOfFewTokens) {
  Device device;
  for (const Case& c : kCases) {
    ExpectTheBitsOfFew(device, c, Plain(c, false), "plain");
    ExpectTheBitsOfFew(device, c, Plain(c, true), "tied");
  }
}

TEST(CudaManyTokens, IndexerScoresInDoubtGiveTheBitsOfFewTokens) {
  Device device;
  for (const Case& c : kCases) {
    if (c.num_tokens() > 1000) continue;
    if (c.num_tokens() > 40) ExpectTheBitsOfFew(device, c, InDoubt(c), "in doubt");
  }
}

}  // namespace
}  // namespace dsv4::testing
