// Primes, multipliers and rows against NumPy's generator and an implementation in Python.
#include "model/engram/engram_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "model/engram/numpy_draws.h"

namespace dsv4::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

EngramConfig ReleaseConfig() {
  return {.layer_ids = {1, 14},
          .num_embeddings = {384006168, 384016682},
          .vocab_size = 16000000,
          .max_ngram_size = 4,
          .n_heads = 8,
          .head_dim = 256,
          .pad_token_id = 2,
          .compressed_vocab_size = 99092};
}

// Classes that no tokenizer has.
std::vector<int32_t> ManyClasses() {
  std::vector<int32_t> classes;
  for (int64_t id = 0; id < 129280; ++id) classes.push_back(static_cast<int32_t>(id * 7919 % 99092));
  return classes;
}

EngramHash ReleaseHash() {
  auto hash = EngramHash::Create(ReleaseConfig(), ManyClasses(), 99092);
  EXPECT_TRUE(hash) << hash.error().ToString();
  return std::move(*hash);
}

EngramConfig SmallConfig() {
  return {.layer_ids = {0, 2},
          .vocab_size = 50,
          .max_ngram_size = 3,
          .n_heads = 2,
          .head_dim = 32,
          .pad_token_id = 1};
}

template <typename T>
std::vector<T> Vector(std::span<const T> values) {
  return {values.begin(), values.end()};
}

TEST(NumpyDraws, AreThoseOfDefaultRng) {
  NumpyDraws raw(4294967295U);
  EXPECT_EQ(raw.Next(), 4647538520743280031U);
  EXPECT_EQ(raw.Next(), 4041050679407036418U);
  NumpyDraws draws(0);
  constexpr uint64_t kBound = 9223372036854775807U / 300 / 2;
  for (const uint64_t want : {9791557692314228U, 4147238719407709U, 629856758207496U, 254067552281937U})
    EXPECT_EQ(draws.Below(kBound), want);
}

// Every second draw is refused.
TEST(NumpyDraws, DrawsAgainWhatWouldFavourSomeNumbers) {
  NumpyDraws draws(5);
  for (const uint64_t want :
       {7424841456459477716U, 4753039369592592096U, 497422932274907254U, 3535953814837461319U,
        9215773039584369736U, 2162974836438629302U, 4011683090691807966U, 4547334724496083881U})
    EXPECT_EQ(draws.Below((uint64_t{1} << 63) + 1), want);
}

TEST(IsPrime, KnowsPrimesAndWhatLooksLikeThem) {
  int count = 0;
  for (int64_t n = -3; n < 1000; ++n) count += IsPrime(n) ? 1 : 0;
  EXPECT_EQ(count, 168);
  // Carmichael numbers, strong pseudoprimes to the bases 2 to 7 and 2 to 31, squares of primes, and the
  // largest prime of 63 bits.
  for (const int64_t n : {561L, 41041L, 3215031751L, 3825123056546413051L, 16000057L * 16000057L})
    EXPECT_FALSE(IsPrime(n)) << n;
  for (const int64_t n : {16000057L, 16000889L, 1000000007L, 9223372036854775783L})
    EXPECT_TRUE(IsPrime(n)) << n;
}

TEST(EngramHash, TheReleasesPrimesAndMultipliers) {
  const EngramHash hash = ReleaseHash();
  ASSERT_EQ(hash.num_tables(), 2);
  EXPECT_EQ(hash.rows_per_token(), 24);
  EXPECT_EQ(hash.look_back(), 3);
  EXPECT_EQ(hash.primes(0).front(), 16000057);
  EXPECT_EQ(hash.primes(0).back(), 16000463);
  EXPECT_EQ(hash.primes(1).front(), 16000477);
  EXPECT_EQ(hash.primes(1).back(), 16000889);
  EXPECT_THAT(Vector(hash.primes(0).first(8)),
              ElementsAre(16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183));
  EXPECT_EQ(hash.num_table_rows(0), 384006168);
  EXPECT_EQ(hash.num_table_rows(1), 384016682);
  EXPECT_THAT(Vector(hash.multipliers(0)),
              ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(Vector(hash.multipliers(1)),
              ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
}

TEST(EngramHash, RowsOfASequenceFromItsStart) {
  const EngramHash hash = ReleaseHash();
  const std::vector<int32_t> ids = {0, 128803, 19923, 2058, 33310, 3, 129279};
  const auto classes = hash.Classes(ids);
  ASSERT_TRUE(classes);
  const std::vector<int32_t> start(3, kv::kNoClass);
  std::vector<int64_t> rows(7 * 24);
  ASSERT_TRUE(hash.Rows(0, start, *classes, rows).ok());
  EXPECT_THAT(
      std::vector<int64_t>(rows.begin(), rows.begin() + 24),
      ElementsAre(7140334, 16844604, 35195816, 54091120, 66721451, 92341720, 97166166, 126279975, 135332441,
                  155455928, 160100334, 180653735, 197789622, 215204616, 226385452, 248404617, 267176050,
                  276715704, 295011003, 312848993, 335663531, 338267944, 360113398, 382411731));
  EXPECT_THAT(
      std::vector<int64_t>(rows.begin() + 6 * 24, rows.end()),
      ElementsAre(4749872, 21488059, 41032854, 56801541, 67824546, 90531034, 102452786, 123451606, 141357252,
                  154201008, 173721631, 177312370, 202785317, 210792288, 234891175, 253470896, 262897418,
                  283359108, 292121735, 306132197, 332076224, 347896640, 361308217, 379144604));
}

// The image's own position and all in front of it are the pad.
TEST(EngramHash, NGramsEndAtAnImage) {
  const EngramHash hash = ReleaseHash();
  const std::vector<int32_t> ids = {0, 128803, 19923, 2058, 33310, 3, 129279};
  const std::array<bool, 7> is_image = {false, false, false, true, false, false, false};
  const auto classes = hash.Classes(ids, is_image);
  ASSERT_TRUE(classes);
  const std::vector<int32_t> start(3, kv::kNoClass);
  std::vector<int64_t> rows(7 * 24);
  ASSERT_TRUE(hash.Rows(1, start, *classes, rows).ok());
  const auto some = [&](size_t token) {
    return std::vector<int64_t>{rows[token * 24], rows[token * 24 + 7], rows[token * 24 + 14],
                                rows[token * 24 + 21]};
  };
  EXPECT_THAT(some(2), ElementsAre(11019252, 127141651, 237484662, 348421147));
  EXPECT_THAT(some(3), ElementsAre(12009185, 119123967, 229547874, 349021084));
  EXPECT_THAT(some(4), ElementsAre(2880821, 113758235, 239861080, 351436714));
  EXPECT_THAT(some(5), ElementsAre(354205, 120437080, 233361025, 346259178));
  EXPECT_THAT(some(6), ElementsAre(13876804, 117903090, 229236426, 344623003));
}

// A small table, whose multipliers no release has.
TEST(EngramHash, OtherSizesHaveTheirOwnMultipliers) {
  const auto hash = EngramHash::Create(SmallConfig(), {0, 1, 2, 1, 3}, 4);
  ASSERT_TRUE(hash) << hash.error().ToString();
  EXPECT_THAT(Vector(hash->multipliers(0)),
              ElementsAre(1468733653847134283, 622085807911156451, 94478513731124503));
  EXPECT_THAT(Vector(hash->primes(1)), ElementsAre(71, 73, 79, 83));
  EXPECT_EQ(hash->pad_class(), 1);
  const auto classes = hash->Classes(std::vector<int32_t>{4, 0, 3, 2});
  ASSERT_TRUE(classes);
  std::vector<int64_t> rows(16);
  ASSERT_TRUE(hash->Rows(1, std::vector<int32_t>(2, kv::kNoClass), *classes, rows).ok());
  EXPECT_THAT(rows, ElementsAre(21, 83, 211, 268, 50, 80, 148, 244, 63, 143, 199, 298, 34, 117, 212, 268));
}

// Every cut of a sequence gives its rows.
TEST(EngramHash, ChunksLookBackThroughTheState) {
  const EngramHash hash = ReleaseHash();
  const std::vector<int32_t> ids = {5, 6, 128000, 7, 99, 1234, 77};
  const std::array<bool, 7> is_image = {false, false, true, false, false, false, false};
  const auto classes = hash.Classes(ids, is_image);
  ASSERT_TRUE(classes);
  std::vector<int64_t> whole(7 * 24);
  ASSERT_TRUE(hash.Rows(0, std::vector<int32_t>(3, kv::kNoClass), *classes, whole).ok());
  for (size_t cut = 1; cut < ids.size(); ++cut) {
    kv::ClassHistory history(hash.look_back(), 0);
    std::vector<int64_t> rows(7 * 24);
    std::vector<int32_t> before(3);
    size_t begin = 0;
    for (const size_t count : {cut, ids.size() - cut}) {
      const auto chunk = std::span<const int32_t>(*classes).subspan(begin, count);
      history.LookBack(before);
      ASSERT_TRUE(hash.Rows(0, before, chunk, std::span(rows).subspan(begin * 24, count * 24)).ok());
      history.Append(chunk);
      begin += count;
    }
    EXPECT_EQ(rows, whole) << "cut at " << cut;
  }
}

// --- Seeded mistakes ---------------------------------------------------------------------------------------------------

enum class Mistake : uint8_t {
  kNone,
  kPadIsClassZero,      // In front of the first token.
  kFirstTokenRepeated,  // The same index.
  kReversedLookBack,    // The farthest token by the nearest one's multiplier.
  kTokenLeftOut,        // N-grams of the tokens in front alone.
  kSumForXor,           // Products are added up.
  kNoOffsets,           // All n-gram sizes and heads in one table's rows.
  kHeadsFirst,          // Rows by head, then by size.
  kOtherLayer,          // Multipliers of the other layer.
  kImageIsOneToken,     // N-grams go on in front of an image.
  kTokenIdsForClasses   // No classes.
};

std::vector<int64_t> RowsWith(Mistake mistake, const EngramHash& hash, std::span<const int32_t> ids,
                              std::span<const int32_t> classes, size_t table) {
  const auto of = static_cast<int>(table);
  const auto primes = hash.primes(of);
  const auto multipliers = hash.multipliers(mistake == Mistake::kOtherLayer ? 1 - of : of);
  const auto sizes = static_cast<size_t>(hash.look_back());
  const size_t heads = primes.size() / sizes;
  std::vector<int64_t> rows;
  for (size_t t = 0; t < classes.size(); ++t) {
    std::vector<int64_t> own;
    int64_t mixed = 0;
    bool ended = false;
    std::vector<int64_t> back;
    for (size_t k = 0; k <= sizes; ++k) {
      int64_t value = hash.pad_class();
      if (mistake == Mistake::kPadIsClassZero) value = 0;
      if (mistake == Mistake::kFirstTokenRepeated) value = classes[0];
      if (t >= k) {
        const bool image = classes[t - k] == kv::kNoClass;
        ended = ended || (image && mistake != Mistake::kImageIsOneToken);
        value = ended || image ? hash.pad_class()
                               : (mistake == Mistake::kTokenIdsForClasses ? ids[t - k] : classes[t - k]);
      }
      back.push_back(value);
    }
    int64_t offset = 0;
    for (size_t n = 0; n <= sizes; ++n) {
      const size_t factor = mistake == Mistake::kReversedLookBack ? sizes - n : n;
      const int64_t product = n == 0 && mistake == Mistake::kTokenLeftOut ? 0 : back[n] * multipliers[factor];
      mixed = mistake == Mistake::kSumForXor
                  ? static_cast<int64_t>((static_cast<uint64_t>(mixed) + static_cast<uint64_t>(product)) >> 1)
                  : mixed ^ product;
      if (n == 0) continue;
      for (size_t head = 0; head < heads; ++head) {
        const int64_t prime = primes[(n - 1) * heads + head];
        own.push_back(mixed % prime + (mistake == Mistake::kNoOffsets ? 0 : offset));
        offset += prime;
      }
    }
    for (size_t i = 0; i < own.size(); ++i)
      rows.push_back(mistake == Mistake::kHeadsFirst ? own[i % sizes * heads + i / sizes] : own[i]);
  }
  return rows;
}

TEST(EngramHashMistakes, EachGivesOtherRows) {
  const EngramHash hash = ReleaseHash();
  const std::vector<int32_t> ids = {9, 90000, 7, 99, 1234, 77, 98000};
  const std::array<bool, 7> is_image = {false, false, false, true, false, false, false};
  const auto classes = hash.Classes(ids, is_image);
  ASSERT_TRUE(classes);
  std::vector<int64_t> right(ids.size() * 24);
  ASSERT_TRUE(hash.Rows(1, std::vector<int32_t>(3, kv::kNoClass), *classes, right).ok());
  EXPECT_EQ(RowsWith(Mistake::kNone, hash, ids, *classes, 1), right);
  for (int i = 1; i <= static_cast<int>(Mistake::kTokenIdsForClasses); ++i)
    EXPECT_NE(RowsWith(static_cast<Mistake>(i), hash, ids, *classes, 1), right) << "mistake " << i;
}

TEST(EngramHash, RefusesAnotherTokenizerAndOtherTables) {
  const auto message = [](const EngramConfig& config, std::vector<int32_t> classes, int32_t count) {
    const auto hash = EngramHash::Create(config, std::move(classes), count);
    return hash ? std::string() : hash.error().message();
  };
  EXPECT_THAT(message(ReleaseConfig(), ManyClasses(), 98627),
              HasSubstr("129280 ids have 98627 classes, engram_compressed_vocab_size wants 99092"));
  EngramConfig config = ReleaseConfig();
  config.num_embeddings[1] += 1;
  EXPECT_THAT(
      message(config, ManyClasses(), 99092),
      HasSubstr(
          "layer 14: engram_num_embeddings has 384016683 rows, the primes from 16000000 on give 384016682"));
  config = SmallConfig();
  config.pad_token_id = 5;
  EXPECT_THAT(message(config, {0, 1, 2, 1, 3}, 4), HasSubstr("engram_pad_token_id 5 is no id below 5"));
  EXPECT_THAT(message(SmallConfig(), {}, 0), HasSubstr("got 0 classes"));
}

TEST(EngramHash, RefusesIdsAndClassesThatDoNotExist) {
  const auto hash = EngramHash::Create(SmallConfig(), {0, 1, 2, 1, 3}, 4);
  ASSERT_TRUE(hash);
  for (const int32_t id : {-1, 5}) {
    const auto classes = hash->Classes(std::vector<int32_t>{0, id});
    ASSERT_FALSE(classes);
    EXPECT_THAT(classes.error().message(), HasSubstr("token 1: id"));
  }
  std::vector<int64_t> rows(4);
  for (const int32_t bad : {4, -2}) {
    const Status status = hash->Rows(0, std::vector<int32_t>{0, bad}, std::vector<int32_t>{1}, rows);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("2 in front of token 0: class"));
  }
}

}  // namespace
}  // namespace dsv4::model
