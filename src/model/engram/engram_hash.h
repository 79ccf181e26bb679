// Which rows of the n-gram tables (Engram) a token reads. They follow from the classes of the token and of
// those in front of it alone (tokenizer/token_classes.h), so they are known before a pass.
//
//   h = c_0 m_0;  for n = 2 .. max_ngram_size: h ^= c_{n-1} m_{n-1};  row of n-gram size n and head i = h mod prime[n][i] + offset[n][i]
//
// c_k is the class of the token k back. An n-gram ends at an image's position and before the first token.
// There and further back c_k is the class of the pad token. Every layer with a table has primes and
// multipliers of its own.
//   Primes: for each n-gram size the next n_heads ones from vocab_size on that no table has yet.
//   Offsets: running sums of the layer's primes.
//   Multipliers: 2 r + 1, r of NumPy's default_rng(10007 layer).integers(0, (2^63 - 1) / classes / 2, max_ngram_size).
// A product stays below 2^63.
// Source: release inference code, engram.py (v4.1 forward, section 6).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/class_history.h"
#include "model/config/config.h"

namespace dsv4::model {

class EngramHash {
 public:
  // `classes`: by token id, all below `num_classes`. InvalidArgument: a number of classes or of rows that is
  // not the config's, a table whose primes do not fit.
  static Result<EngramHash> Create(const EngramConfig& config, std::vector<int32_t> classes,
                                   int32_t num_classes);

  int num_tables() const { return static_cast<int>(tables_.size()); }
  int64_t num_table_rows(int table) const { return tables_[static_cast<size_t>(table)].num_rows; }
  std::span<const int64_t> primes(int table) const { return tables_[static_cast<size_t>(table)].primes; }
  std::span<const int64_t> multipliers(int table) const {
    return tables_[static_cast<size_t>(table)].multipliers;
  }
  // Rows of one token in each table: by n-gram size, then by head.
  int64_t rows_per_token() const { return rows_per_token_; }
  // Tokens in front of one that its rows depend on (kv::CacheLayout::look_back).
  int64_t look_back() const { return look_back_; }
  int32_t pad_class() const { return pad_class_; }

  // Classes of a sequence's next tokens, as its state keeps them (SequenceState::SetClasses): kNoClass where
  // `is_image` says so. It has a flag for each token, or is empty. InvalidArgument names an id outside the
  // vocabulary.
  Result<std::vector<int32_t>> Classes(std::span<const int32_t> token_ids,
                                       std::span<const bool> is_image = {}) const;

  // rows[token * rows_per_token() + i]: the table's rows of tokens of these classes; `before` has those in
  // front of the first, nearest first (SequenceState::LookBack). DataLoss names a class that does not exist:
  // `before` may come from a kept state.
  Status Rows(int table, std::span<const int32_t> before, std::span<const int32_t> classes,
              std::span<int64_t> rows) const;

 private:
  struct Table {
    std::vector<int64_t> primes;       // By n-gram size, then head,
    std::vector<int64_t> offsets;      // as these.
    std::vector<int64_t> multipliers;  // By distance.
    int64_t num_rows = 0;
  };

  std::vector<Table> tables_;
  std::vector<int32_t> classes_;
  int32_t num_classes_ = 0;
  int32_t pad_class_ = 0;
  int64_t rows_per_token_ = 0;
  int64_t look_back_ = 0;
  int64_t heads_ = 0;
};

// Deterministic: exact for every number of 63 bits.
bool IsPrime(int64_t number);

}  // namespace dsv4::model
