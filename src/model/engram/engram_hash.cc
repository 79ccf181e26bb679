// Primes, multipliers and rows of the n-gram tables.
#include "model/engram/engram_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <set>
#include <utility>

#include "base/text.h"
#include "model/engram/numpy_draws.h"

namespace dsv4::model {
namespace {

__extension__ using Wide = unsigned __int128;

uint64_t PowerModulo(uint64_t base, uint64_t exponent, uint64_t modulus) {
  uint64_t result = 1;
  for (base %= modulus; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = static_cast<uint64_t>(Wide{result} * base % modulus);
    base = static_cast<uint64_t>(Wide{base} * base % modulus);
  }
  return result;
}

// The seed of a layer's multipliers.
constexpr int64_t kSeedStep = 10007;
// So many classes at most leave a bound of more than 32 bits.
constexpr int64_t kMostClasses = int64_t{1} << 29;

std::vector<int64_t> Multipliers(int64_t layer, int64_t num_classes, int64_t count) {
  const int64_t bound = std::numeric_limits<int64_t>::max() / num_classes / 2;
  NumpyDraws draws(static_cast<uint32_t>(kSeedStep * layer));
  std::vector<int64_t> multipliers;
  for (int64_t i = 0; i < count; ++i)
    multipliers.push_back(2 * static_cast<int64_t>(draws.Below(static_cast<uint64_t>(bound))) + 1);
  return multipliers;
}

}  // namespace

// Miller and Rabin's test with the twelve first primes as bases, which has no false primes of 64 bits.
bool IsPrime(int64_t number) {
  constexpr std::array<int64_t, 12> kBases = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  if (number < 2) return false;
  for (const int64_t base : kBases) {
    if (number % base == 0) return number == base;
  }
  const auto n = static_cast<uint64_t>(number);
  const int twos = std::countr_zero(n - 1);
  for (const int64_t base : kBases) {
    uint64_t x = PowerModulo(static_cast<uint64_t>(base), (n - 1) >> twos, n);
    bool passes = x == 1 || x == n - 1;
    for (int i = 1; i < twos && !passes; ++i) {
      x = static_cast<uint64_t>(Wide{x} * x % n);
      passes = x == n - 1;
    }
    if (!passes) return false;
  }
  return true;
}

Result<EngramHash> EngramHash::Create(const EngramConfig& config, std::vector<int32_t> classes,
                                      int32_t num_classes) {
  if (config.compressed_vocab_size > 0 && config.compressed_vocab_size != num_classes) {
    return Error(
        InvalidArgument(fmt::format("Engram: the tokenizer's {} {}, engram_compressed_vocab_size wants {}; "
                                    "is tokenizer.json of this checkpoint?",
                                    Counted(classes.size(), "id has", "ids have"),
                                    Counted(num_classes, "class"), config.compressed_vocab_size)));
  }
  if (num_classes < 1 || num_classes > kMostClasses) {
    return Error(InvalidArgument(
        fmt::format("Engram: got {}, want 1 to {}", Counted(num_classes, "class"), kMostClasses)));
  }
  if (config.pad_token_id < 0 || config.pad_token_id >= static_cast<int64_t>(classes.size())) {
    return Error(InvalidArgument(fmt::format("Engram: engram_pad_token_id {} is no id below {}",
                                             config.pad_token_id, classes.size())));
  }
  EngramHash hash;
  hash.classes_ = std::move(classes);
  hash.num_classes_ = num_classes;
  hash.pad_class_ = hash.classes_[static_cast<size_t>(config.pad_token_id)];
  hash.rows_per_token_ = config.rows_per_token();
  hash.look_back_ = config.max_ngram_size - 1;
  hash.heads_ = config.n_heads;
  std::set<int64_t> used;
  for (size_t i = 0; i < config.layer_ids.size(); ++i) {
    Table& table = hash.tables_.emplace_back();
    for (int64_t size = 2; size <= config.max_ngram_size; ++size) {
      int64_t prime = config.vocab_size - 1;
      for (int64_t head = 0; head < config.n_heads; ++head) {
        do ++prime;
        while (!IsPrime(prime) || used.contains(prime));
        used.insert(prime);
        table.offsets.push_back(table.num_rows);
        table.primes.push_back(prime);
        table.num_rows += prime;
      }
    }
    if (!config.num_embeddings.empty() && config.num_embeddings[i] != table.num_rows) {
      return Error(InvalidArgument(fmt::format(
          "Engram of layer {}: engram_num_embeddings has {}, the primes from {} on give {}",
          config.layer_ids[i], Counted(config.num_embeddings[i], "row"), config.vocab_size, table.num_rows)));
    }
    table.multipliers = Multipliers(config.layer_ids[i], num_classes, config.max_ngram_size);
  }
  return hash;
}

Result<std::vector<int32_t>> EngramHash::Classes(std::span<const int32_t> token_ids,
                                                 std::span<const bool> is_image) const {
  std::vector<int32_t> classes(token_ids.size(), kv::kNoClass);
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (!is_image.empty() && is_image[i]) continue;
    if (token_ids[i] < 0 || static_cast<size_t>(token_ids[i]) >= classes_.size()) {
      return Error(InvalidArgument(fmt::format("Engram, token {}: id {} has no class, want 0 to {}", i,
                                               token_ids[i], classes_.size() - 1)));
    }
    classes[i] = classes_[static_cast<size_t>(token_ids[i])];
  }
  return classes;
}

Status EngramHash::Rows(int table, std::span<const int32_t> before, std::span<const int32_t> classes,
                        std::span<int64_t> rows) const {
  const Table& of = tables_[static_cast<size_t>(table)];
  const auto num_tokens = static_cast<int64_t>(classes.size());
  int64_t* row = rows.data();
  for (int64_t token = 0; token < num_tokens; ++token) {
    int64_t hash = 0;
    bool ended = false;
    size_t index = 0;
    for (int64_t back = 0; back <= look_back_; ++back) {
      const int64_t at = token - back;
      const int32_t own = at >= 0 ? classes[static_cast<size_t>(at)] : before[static_cast<size_t>(-at - 1)];
      if (own != kv::kNoClass && (own < 0 || own >= num_classes_)) {
        return DataLoss(fmt::format("Engram, {} in front of token {}: class {}, want 0 to {}", back, token,
                                    own, num_classes_ - 1));
      }
      ended = ended || own == kv::kNoClass;
      hash ^= int64_t{ended ? pad_class_ : own} * of.multipliers[static_cast<size_t>(back)];
      if (back == 0) continue;
      for (int64_t head = 0; head < heads_; ++head, ++index)
        *row++ = hash % of.primes[index] + of.offsets[index];
    }
  }
  return {};
}

}  // namespace dsv4::model
