// GEMMs by tiles of 16 rows: the unpacking of weights and the loops around it. A unit includes it inside its
// own namespace after it has defined Tiles (amx_tiles_body.h).
//
// A step is 32 columns. Weights are unpacked with their scales, which bf16 holds exactly, and stand in front:
// sixteen rows of a step are a tile. A tile of activations has sixteen pairs of columns, each of up to
// sixteen tokens (TileActivations). A sum gains the sum of a step's even columns plus that of its odd ones,
// step after step, from zero. So one token and many have the same bits.
//
// Twelve instructions unpack the operands of one multiplication. The multiplier is a unit of its own: while
// it is at a step, the next ones are unpacked.
//
// No include guard: one inclusion per unit.

#include "backend/cpu/kernels/transpose_avx512_body.h"

constexpr int64_t kRowsOfTile = 16;
// Two tiles of weights share the loads of activations.
constexpr int64_t kUnpackedRows = 32;
constexpr int64_t kStepColumns = 32;
constexpr int64_t kRowStepBytes = 64;
constexpr int64_t kBlockStepBytes = kUnpackedRows * kRowStepBytes;
// Columns unpacked between two uses of the tiles. Two such stages and the other data in use stay in the
// first-level cache, which two threads may share.
constexpr int64_t kStageColumns = 64;
constexpr int kStageSteps = kStageColumns / kStepColumns;
constexpr int64_t kStageBytes = kStageSteps * kBlockStepBytes;
// Up to two tiles of tokens meet weights that are unpacked for them; more meet rows that are unpacked once.
constexpr int64_t kStreamTokens = 2 * kTileTokens;

constexpr uint16_t kE2m1AsBf16[8] = {0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};

// For every code of a scale the sixteen e2m1 values times that scale, as bf16. A product of two and four bits
// is exact there.
struct NvFp4Values {
  constexpr NvFp4Values() {
    for (int signed_code = 0; signed_code < 256; ++signed_code) {
      const int code = signed_code & 0x7F;  // Scales have no sign.
      for (int i = 0; i < 16; ++i) {
        const int value = kE2m1AsBf16[i % 8];
        const int sign = i < 8 ? 0 : 0x8000;
        uint16_t& word = words[signed_code][i];
        word = static_cast<uint16_t>(sign);
        if (code == 127) word = 0x7FC0;
        if (code == 0 || code == 127 || value == 0) continue;
        // The product of two integers, whose leading bit is found then: e4m3's with three bits, e2m1's with
        // one.
        int exponent = (code >> 3) == 0 ? -6 : (code >> 3) - 7;
        int product = ((code >> 3) == 0 ? 0 : 8) + (code & 7);
        product *= (value & 0x40) != 0 ? 3 : 2;
        exponent += (value >> 7) - 127 + 7 - 4;  // Bit 7's weight.
        while (product < 128) {
          product *= 2;
          --exponent;
        }
        word = static_cast<uint16_t>(sign | (exponent + 127) << 7 | (product & 0x7F));
      }
    }
  }
  alignas(64) uint16_t words[256][16] = {};
};

// The same for scales that are powers of two. What bf16 would hold as a subnormal number the tiles take for
// zero.
struct MxFp4Values {
  constexpr MxFp4Values() {
    for (int code = 0; code < 256; ++code) {
      for (int i = 0; i < 16; ++i) {
        const int value = kE2m1AsBf16[i % 8];
        const int sign = i < 8 ? 0 : 0x8000;
        const int exponent = (value >> 7) + code - 127;
        int bits = exponent >= 255 ? 0x7F80 : (exponent << 7) | (value & 0x7F);
        if (value == 0 || exponent <= 0) bits = 0;
        words[code][i] = static_cast<uint16_t>(code == 255 ? 0x7FC0 : sign | bits);
      }
    }
  }
  alignas(64) uint16_t words[256][16] = {};
};

// Sixteen bytes hold the columns of a step, a word four of them. These words are copied four times, shifted
// by a nibble each. Element i of the vector is column Column(i), and its low four bits are the code.
struct Fp4Step {
  static constexpr int Column(int i) { return i % 8 * 4 + i / 8; }
  static inline __m512i Codes(const uint8_t* bytes) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m512i by = _mm512_set_epi64(0x000C000C000C000C, 0x000C000C000C000C, 0x0008000800080008,
                                        0x0008000800080008, 0x0004000400040004, 0x0004000400040004, 0, 0);
    return _mm512_srlv_epi16(_mm512_broadcast_i32x4(words), by);
  }
};

// Each format has bytes and scale codes of a stage of a row, and bytes of tables for kTableColumns of all
// rows. Unpack is for step `step` of a row.
struct NvFp4 {
  static constexpr int64_t kBytes = kStageColumns / 2;
  static constexpr int64_t kScaleBytes = kStageColumns / 16;
  static constexpr int64_t kTableBytes = 0;
  static inline __m512i Unpack(const uint8_t* bytes, const uint8_t* codes, const uint8_t*, int step) {
    static constexpr NvFp4Values kValues;
    const auto values = [&](int block) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(kValues.words[codes[2 * step + block]]));
    };
    // The fifth bit of an index chooses between the values of both blocks: words 0 to 3 of eight belong to
    // the first.
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(values(0)), values(1), 1);
    const __m512i second = _mm512_set_epi64(0x0010001000100010, 0, 0x0010001000100010, 0, 0x0010001000100010,
                                            0, 0x0010001000100010, 0);
    // (a & b) | c.
    const __m512i indices =
        _mm512_ternarylogic_epi64(Fp4Step::Codes(bytes + 16 * step), _mm512_set1_epi16(0x000F), second, 0xEA);
    return _mm512_permutexvar_epi16(indices, both);
  }
};

struct MxFp4 {
  static constexpr int64_t kBytes = kStageColumns / 2;
  static constexpr int64_t kScaleBytes = kStageColumns / 32;
  static constexpr int64_t kTableBytes = 0;
  static inline __m512i Unpack(const uint8_t* bytes, const uint8_t* codes, const uint8_t*, int step) {
    static constexpr MxFp4Values kValues;
    // Twice, so that the fifth bit of an index does not matter.
    const __m512i values = _mm512_broadcast_i64x4(
        _mm256_load_si256(reinterpret_cast<const __m256i*>(kValues.words[codes[step]])));
    return _mm512_permutexvar_epi16(Fp4Step::Codes(bytes + 16 * step), values);
  }
};

struct Bf16 {
  static constexpr int64_t kBytes = 2 * kStageColumns;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int64_t kTableBytes = 0;
  static inline __m512i Unpack(const uint8_t* bytes, const uint8_t*, const uint8_t*, int step) {
    return _mm512_loadu_si512(bytes + 64 * step);
  }
};

// `tables`: those of the bf16 values of the e4m3 codes times its scale (e4m3_bf16_body.h). Interleaving the
// bytes of 64 codes gives two steps.
struct Fp8 {
  static constexpr int64_t kBytes = kStageColumns;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int64_t kTableBytes = 256;
  static constexpr int64_t kTableColumns = kChunk;
  static inline __m512i Unpack(const uint8_t* bytes, const uint8_t*, const uint8_t* tables, int step) {
    const __m512i codes = _mm512_loadu_si512(bytes + 64 * (step / 2));
    const __m512i lower =
        _mm512_permutex2var_epi8(_mm512_load_si512(tables), codes, _mm512_load_si512(tables + 64));
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(tables + 128), codes, _mm512_load_si512(tables + 192));
    const __m512i upper =
        _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
    return step % 2 == 0 ? _mm512_unpacklo_epi8(lower, upper) : _mm512_unpackhi_epi8(lower, upper);
  }
};

// `tables`: what is added to exponents (FoldFineScales).
struct Fp8Fine {
  static constexpr int64_t kBytes = kStageColumns;
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int64_t kTableBytes = 64;
  static constexpr int64_t kTableColumns = kStageColumns;
  static_assert(kTableBytes * kChunk == kFineBytes * kTableColumns);
  static inline __m512i Unpack(const uint8_t* bytes, const uint8_t*, const uint8_t* tables, int step) {
    const __m512i words = Fp8::Unpack(bytes, nullptr, kE4m3Tables.bytes, step);
    return WithExponents(words, _mm512_loadu_si512(tables));
  }
};

DSV4_INLINE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
DSV4_INLINE int64_t NumStages(int64_t cols) { return (cols + kStageColumns - 1) / kStageColumns; }

template <class Format>
DSV4_INLINE void UnpackRow(const uint8_t* bytes, const uint8_t* codes, const uint8_t* tables, uint8_t* to) {
#pragma GCC unroll 4
  for (int step = 0; step < kStageSteps; ++step)
    _mm512_store_si512(to + step * kBlockStepBytes, Format::Unpack(bytes, codes, tables, step));
}

// Rows [begin, end) of the block from `block` on, columns of stage `stage`. Row r of a step lies at
// kRowStepBytes * r of its kBlockStepBytes of `to`.
template <class Format>
DSV4_INLINE void UnpackRows(const MultiplyArgs& args, const uint8_t* tables, int64_t block, int64_t stage,
                            int64_t begin, int64_t end, uint8_t* to) {
  const uint8_t* of_stage = nullptr;
  if constexpr (Format::kTableBytes > 0)
    of_stage = tables + stage * kStageColumns / Format::kTableColumns * Format::kTableBytes;
  const bool whole = (stage + 1) * kStageColumns <= args.cols;
  if (__builtin_expect(whole && block + end <= args.num_rows, 1)) {
    const int64_t first = block + begin;
    const uint8_t* bytes = args.rows + first * args.row_bytes + stage * Format::kBytes;
    const uint8_t* codes = Format::kScaleBytes > 0
                               ? args.scales + first * args.scale_bytes + stage * Format::kScaleBytes
                               : nullptr;
    const int64_t row_bytes = args.row_bytes;
    const int64_t scale_bytes = Format::kScaleBytes > 0 ? args.scale_bytes : 0;
    for (int64_t r = begin; r < end; ++r, bytes += row_bytes, codes += scale_bytes)
      UnpackRow<Format>(bytes, codes, of_stage, to + r * kRowStepBytes);
    return;
  }
  // Rows past the last are that one again, columns past the last are zeros.
  const int64_t cols = whole ? kStageColumns : args.cols % kStageColumns;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = Least(block + r, args.num_rows - 1);
    alignas(64) uint8_t bytes[Format::kBytes] = {};
    uint8_t codes[Format::kScaleBytes + 1] = {};
    __builtin_memcpy(bytes, args.rows + row * args.row_bytes + stage * Format::kBytes,
                     static_cast<uint64_t>(cols * Format::kBytes / kStageColumns));
    if (Format::kScaleBytes > 0) {
      __builtin_memcpy(codes, args.scales + row * args.scale_bytes + stage * Format::kScaleBytes,
                       static_cast<uint64_t>(cols * Format::kScaleBytes / kStageColumns));
    }
    UnpackRow<Format>(bytes, codes, of_stage, to + r * kRowStepBytes);
  }
}

// Asks for the rows of the next block that correspond to rows [begin, end) of a stage; that block is as long.
// It asks from end to end, since a memory serves that better than lines of many rows. The first block of a
// call has come unasked for, so its rows ask for their own lines ahead.
template <class Format>
DSV4_INLINE void AskAhead(const MultiplyArgs& args, int64_t block, int64_t stage, int64_t begin,
                          int64_t end) {
  const int64_t next = block + kUnpackedRows;
  if (next < args.num_rows) {
    const int64_t at = stage * kUnpackedRows + begin;
    const uint8_t* const rows = args.rows + next * args.row_bytes + at * Format::kBytes;
    for (int64_t i = 0; i < (end - begin) * Format::kBytes; i += 64) __builtin_prefetch(rows + i, 0, 2);
    if (Format::kScaleBytes > 0)
      __builtin_prefetch(args.scales + next * args.scale_bytes + at * Format::kScaleBytes, 0, 2);
  }
  if (block > 0) return;
  constexpr int64_t kStagesAhead = 256 / kStageColumns;
  for (int64_t r = begin; r < end && r < args.num_rows; ++r) {
    const uint8_t* const row = args.rows + r * args.row_bytes + (stage + kStagesAhead) * Format::kBytes;
    for (int64_t i = 0; i < Format::kBytes; i += 64) __builtin_prefetch(row + i, 0, 2);
  }
}

// Tokens of a tile, with those that fill it up: its rows are then whole in cache lines.
DSV4_INLINE int64_t TileWidth(int64_t num_tokens) {
  return num_tokens > 8 ? 16 : num_tokens > 4 ? 8 : num_tokens > 2 ? 4 : num_tokens > 1 ? 2 : 1;
}

// Up to two tiles of tokens of a call.
struct TokenTiles {
  TokenTiles(const MultiplyArgs& args, int64_t first) : token(first), row_stride(args.x_stride) {
    for (int i = 0; i < 2; ++i) {
      const int64_t left = args.num_tokens - first - i * kTileTokens;
      num_tokens[i] = left < 0 ? 0 : Least(left, kTileTokens);
      width[i] = TileWidth(num_tokens[i]);
      x[i] = static_cast<const uint8_t*>(args.x_tiles) + (first + i * kTileTokens) * args.x_stride * 2;
    }
  }
  int64_t token;
  int64_t row_stride;
  int64_t num_tokens[2];
  int64_t width[2];  // Tokens of the tile, with padding.
  const uint8_t* x[2];
};

// Sums of 32 rows and the tokens += a step.
template <int kTokenTiles>
DSV4_INLINE void AddStep(Tiles& tiles, const uint8_t* weights, const TokenTiles& tokens, int64_t step) {
  tiles.Read<4>(weights, kRowStepBytes);
  tiles.Read<6>(tokens.x[0] + step * 64 * tokens.width[0], 4 * tokens.width[0]);
  tiles.Add<0, 4, 6>();
  tiles.Read<5>(weights + kRowsOfTile * kRowStepBytes, kRowStepBytes);
  tiles.Add<1, 5, 6>();
  if constexpr (kTokenTiles == 2) {
    tiles.Read<7>(tokens.x[1] + step * 64 * tokens.width[1], 4 * tokens.width[1]);
    tiles.Add<2, 4, 7>();
    tiles.Add<3, 5, 7>();
  }
}

template <int kTokenTiles>
DSV4_INLINE void ClearSums(Tiles& tiles) {
  tiles.Clear<0>();
  tiles.Clear<1>();
  if constexpr (kTokenTiles == 2) {
    tiles.Clear<2>();
    tiles.Clear<3>();
  }
}

// The results of sixteen rows from `row` on and of a tile of tokens.
DSV4_INLINE void StoreResults(const MultiplyArgs& args, const float (&sums)[kRowsOfTile][kTileTokens],
                              int64_t row, int64_t token, int64_t num_tokens) {
  const int64_t left = args.num_rows - row;
  if (left <= 0) return;
  const __mmask16 rows = static_cast<__mmask16>(left >= kRowsOfTile ? 0xFFFF : (1 << left) - 1);
  float* out = args.out + token * args.out_stride + row;
  constexpr int64_t kTokensToTranspose = 4;  // From so many on that is sooner done than gathering.
  if (num_tokens >= kTokensToTranspose) {
    __m512i of_token[kTileTokens];
#pragma GCC unroll 16
    for (int r = 0; r < kRowsOfTile; ++r) of_token[r] = _mm512_load_si512(sums[r]);
    Transpose(of_token);
    for (int64_t t = 0; t < num_tokens; ++t, out += args.out_stride)
      _mm512_mask_storeu_epi32(out, rows, of_token[t]);
    return;
  }
  const __m512i places =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(kTileTokens));
  for (int64_t t = 0; t < num_tokens; ++t, out += args.out_stride)
    _mm512_mask_storeu_ps(out, rows, _mm512_i32gather_ps(places, &sums[0][t], 4));
}

template <int kTokenTiles>
DSV4_INLINE void StoreSums(Tiles& tiles, const MultiplyArgs& args, int64_t block, const TokenTiles& tokens) {
  alignas(64) float sums[kRowsOfTile][kTileTokens];
  tiles.Write<0>(sums, sizeof(sums[0]));
  StoreResults(args, sums, block, tokens.token, tokens.num_tokens[0]);
  tiles.Write<1>(sums, sizeof(sums[0]));
  StoreResults(args, sums, block + kRowsOfTile, tokens.token, tokens.num_tokens[0]);
  if constexpr (kTokenTiles == 2) {
    tiles.Write<2>(sums, sizeof(sums[0]));
    StoreResults(args, sums, block, tokens.token + kTileTokens, tokens.num_tokens[1]);
    tiles.Write<3>(sums, sizeof(sums[0]));
    StoreResults(args, sums, block + kRowsOfTile, tokens.token + kTileTokens, tokens.num_tokens[1]);
  }
}

// Few tokens: a stage is multiplied while the next one is unpacked, a step of it after each quarter of the
// rows.
template <class Format, int kTokenTiles>
__attribute__((noinline)) static void MultiplyStream(const MultiplyArgs& args, const uint8_t* tables) {
  const int64_t num_stages = NumStages(args.cols);
  const TokenTiles tokens(args, 0);
  Tiles tiles(tokens.width[0], tokens.width[1]);
  alignas(64) uint8_t unpacked[2][kStageBytes];
  for (int64_t block = 0; block < args.num_rows; block += kUnpackedRows) {
    ClearSums<kTokenTiles>(tiles);
    for (int64_t stage = 0; stage <= num_stages; ++stage) {
      for (int step = 0; step < kStageSteps; ++step) {
        if (stage < num_stages) {
          constexpr int64_t kRows = kUnpackedRows / kStageSteps;
          AskAhead<Format>(args, block, stage, step * kRows, (step + 1) * kRows);
          UnpackRows<Format>(args, tables, block, stage, step * kRows, (step + 1) * kRows,
                             unpacked[stage % 2]);
        }
        if (stage > 0) {
          AddStep<kTokenTiles>(tiles, unpacked[(stage - 1) % 2] + step * kBlockStepBytes, tokens,
                               (stage - 1) * kStageSteps + step);
        }
      }
    }
    StoreSums<kTokenTiles>(tiles, args, block, tokens);
  }
}

template <int kTokenTiles>
DSV4_INLINE void MultiplyBlock(Tiles& tiles, const MultiplyArgs& args, int64_t block, const uint8_t* unpacked,
                               const TokenTiles& tokens) {
  const int64_t num_steps = NumStages(args.cols) * kStageSteps;
  ClearSums<kTokenTiles>(tiles);
  for (int64_t step = 0; step < num_steps; ++step)
    AddStep<kTokenTiles>(tiles, unpacked + step * kBlockStepBytes, tokens, step);
  StoreSums<kTokenTiles>(tiles, args, block, tokens);
}

// Many tokens: a block of rows is unpacked once, and stays in the second-level cache until all have met it.
template <class Format>
__attribute__((noinline)) static void MultiplyUnpacked(const MultiplyArgs& args, const uint8_t* tables,
                                                       uint8_t* unpacked) {
  const int64_t num_stages = NumStages(args.cols);
  const int64_t whole = args.num_tokens / kStreamTokens * kStreamTokens;
  for (int64_t block = 0; block < args.num_rows; block += kUnpackedRows) {
    for (int64_t stage = 0; stage < num_stages; ++stage) {
      AskAhead<Format>(args, block, stage, 0, kUnpackedRows);
      UnpackRows<Format>(args, tables, block, stage, 0, kUnpackedRows, unpacked + stage * kStageBytes);
    }
    {
      Tiles tiles(kTileTokens, kTileTokens);
      for (int64_t token = 0; token < whole; token += kStreamTokens)
        MultiplyBlock<2>(tiles, args, block, unpacked, TokenTiles(args, token));
    }
    if (whole == args.num_tokens) continue;
    const TokenTiles rest(args, whole);
    Tiles tiles(rest.width[0], rest.width[1]);
    if (rest.num_tokens[1] > 0) {
      MultiplyBlock<2>(tiles, args, block, unpacked, rest);
    } else {
      MultiplyBlock<1>(tiles, args, block, unpacked, rest);
    }
  }
}

template <class Format>
static void MultiplyWith(const MultiplyArgs& args, const uint8_t* tables, uint8_t* scratch) {
  if (args.num_tokens == 0 || args.num_rows == 0) return;
  if (args.num_tokens <= kTileTokens) return MultiplyStream<Format, 1>(args, tables);
  if (args.num_tokens <= kStreamTokens) return MultiplyStream<Format, 2>(args, tables);
  MultiplyUnpacked<Format>(args, tables, scratch);
}

template <class Format>
static void Multiply(const MultiplyArgs& args) {
  MultiplyWith<Format>(args, nullptr, static_cast<uint8_t*>(args.scratch));
}

// Scales that are no powers of two do not fit in front of the products. The choice depends on the weight
// alone, so that a row's sums do too.
static void MultiplyFp8(const MultiplyArgs& args) {
  const int64_t num_chunks = (args.cols + kChunk - 1) / kChunk;
  if (!Foldable(args.chunk_scales, num_chunks))
    return avx512bf16::kBf16Matmul.formats[static_cast<int>(RowFormat::kFp8)].multiply(args);
  uint8_t* const tables = static_cast<uint8_t*>(args.scratch);
  FoldScales(args.chunk_scales, num_chunks, tables);
  MultiplyWith<Fp8>(args, tables, tables + (num_chunks + 1) / 2 * kTableBytesPerPack);
}

static void MultiplyFp8Fine(const MultiplyArgs& args) {
  const int64_t num_chunks = (args.cols + kChunk - 1) / kChunk;
  if (!Foldable(args.chunk_scales, num_chunks * (kChunk / kFineColumns)))
    return avx512bf16::kBf16Matmul.formats[static_cast<int>(RowFormat::kFp8Fine)].multiply(args);
  uint8_t* const tables = static_cast<uint8_t*>(args.scratch);
  FoldFineScales(args.chunk_scales, num_chunks, tables);
  MultiplyWith<Fp8Fine>(args, tables, tables + (num_chunks + 1) / 2 * kTableBytesPerPack);
}

// A tile of activations: TileWidth dwords for each pair of columns, pair after pair.
static void TileActivations(const uint8_t* rows, int64_t row_bytes, int64_t num_rows, int64_t num_bytes,
                            uint8_t* to) {
  const auto width = static_cast<int>(TileWidth(num_rows));
  if (width == kTileTokens) {
    for (int64_t at = 0; at < num_bytes; at += 64, to += 64 * width) {
      __m512i pairs[kTileTokens];
#pragma GCC unroll 16
      for (int t = 0; t < kTileTokens; ++t)
        pairs[t] = t < num_rows ? _mm512_loadu_si512(rows + t * row_bytes + at) : _mm512_setzero_si512();
      Transpose(pairs);
#pragma GCC unroll 16
      for (int i = 0; i < kTileTokens; ++i) _mm512_storeu_si512(to + 64 * i, pairs[i]);
    }
    return;
  }
  const __m512i places = _mm512_mullo_epi32(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(width));
  for (int64_t at = 0; at < num_bytes; at += 64, to += 64 * width) {
    for (int t = 0; t < width; ++t) {
      const __m512i pairs =
          t < num_rows ? _mm512_loadu_si512(rows + t * row_bytes + at) : _mm512_setzero_si512();
      _mm512_i32scatter_epi32(to + 4 * t, places, pairs, 4);
    }
  }
}

enum class Interleave : uint8_t { kNone, kBytes, kNibbles };

struct Order {
  constexpr explicit Order(Interleave interleave) {
    for (int i = 0; i < kPackColumns; ++i) {
      int column = i;
      if (interleave == Interleave::kBytes) column = E4m3Column(i);
      if (interleave == Interleave::kNibbles) column = i / 32 * 32 + Fp4Step::Column(i % 32);
      columns[i] = static_cast<uint8_t>(column);
    }
  }
  uint8_t columns[kPackColumns] = {};
};
constexpr Order kInOrder(Interleave::kNone);
constexpr Order kFp8Order(Interleave::kBytes);
constexpr Order kFp4Order(Interleave::kNibbles);

// F32 and F16 weights are not exact in bf16.
constexpr MatmulKernels kTileMatmul = {
    .bf16_activations = true,
    .tile_activations = TileActivations,
    .formats = {{},
                {},
                {kInOrder.columns, Multiply<Bf16>},
                {kFp8Order.columns, MultiplyFp8},
                {kFp4Order.columns, Multiply<MxFp4>},
                {kFp4Order.columns, Multiply<NvFp4>},
                {kFp8Order.columns, MultiplyFp8Fine}},
};
