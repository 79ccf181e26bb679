// The loops around a tier's chunk decoders, included by every matmul translation unit inside its own
// namespace after it has defined
//
//   Vec, WVec        an accumulator of fp32 lanes; a vector of unpacked weights
//   X                element of packed activations
//   kVecs, kLanes    a step is kVecs weight vectors of kLanes elements
//   kRowsOfOne                   rows that meet one token side by side
//   kPlainRows, kPlainTokens     rows that meet several tokens, and how many, without fresh sums
//   kFreshRows, kFreshTokens     and with them
//   kWideTokens                  instead of kFreshTokens, with accumulators in memory; 0: never
//   kHoldX                       one load of activations for all rows, where the compiler prefers a load for each product
//   kLoadedTokens                instead of kPlainTokens where unpacking is nothing but a load
//   Zero, Dot, Fma, Add, Reduce4, LoadX, LoadW, StoreW
//
// and formats, each with
//
//   kColumns         of a chunk, a divisor of kPackColumns; kBytes and kScaleBytes of it
//   kPartSteps       steps that share a scale vector, a part
//   kScaled          false: PartScale is not asked for
//   kRowsOfOne       instead of the tier's, if there
//   kLoaded          true: step by step, a row is nothing but weight vectors
//   Scales LoadScales(codes, side, chunk), Vec PartScale(scales, part)
//   void Decode(bytes, step, scales, WVec*)
//
// Weights are unpacked in registers: a few rows meet a few tokens there, and when there are more tokens the
// rows are unpacked again. A format for which that costs more than loads of unpacked weights uses
// MultiplyUnpacked for many tokens.
//
// The sum of a pair (row, token) is always the same sequence. Scaled formats have a fresh sum for each part,
// added with one fused multiply-add with the scale. Others have one chain from end to end, unless its lanes
// are so few that the error of a long chain would show.
//
// No include guard: one inclusion per unit.

#define DSV4_INLINE static inline __attribute__((always_inline))

// Rows whose sums are reduced together.
constexpr int kTileRows = 4;
// Up to so many tokens meet a tile at a time, as its weights arrive from memory.
constexpr int64_t kMaxStreamTokens = 16;
// For more, so many rows stay in the second-level cache until all tokens have met them.
constexpr int64_t kBlockRows = 32;
// Activations that meet the rows of a block before others do: they share the first-level cache with the rows.
constexpr int64_t kPanelBytes = 16384;
// Memory is asked for so far ahead.
constexpr int64_t kAheadBytes = 8192;

template <class Format>
struct Shape {
  static constexpr int kSteps = static_cast<int>(Format::kColumns / (kVecs * kLanes));
  static constexpr int kParts = kSteps / Format::kPartSteps;
  static_assert(kSteps * kVecs * kLanes == Format::kColumns && kParts * Format::kPartSteps == kSteps);
  static_assert(kPackColumns % Format::kColumns == 0);

  static constexpr bool kFresh = Format::kScaled || sizeof(Vec) < 64;
  // Accumulators of more than kFreshTokens wait in the first-level cache while sums have the registers.
  static constexpr bool InMemory(int num_tokens) { return kFresh && num_tokens > kFreshTokens; }
  static constexpr int kMostTokens = kFresh ? (kWideTokens > kFreshTokens ? kWideTokens : kFreshTokens)
                                            : (Format::kLoaded ? kLoadedTokens : kPlainTokens);
  // Share of the stored matrix in a row of chunks.
  static constexpr int kRowsOfChunk = requires { Format::kPaired; }
  ? 2 : 1;
  static constexpr int Rows(int num_tokens) {
    if (num_tokens > 1) return kFresh ? kFreshRows : kPlainRows;
    if constexpr (requires { Format::kRowsOfOne; }) return Format::kRowsOfOne;
    return kRowsOfOne;
  }
};

// The rows of a call.
template <class Format>
struct Source {
  Source(const MultiplyArgs& a, const void* side_data)
      : args(a),
        side(side_data),
        full_chunks(a.cols / Format::kColumns),
        num_chunks((a.cols + Format::kColumns - 1) / Format::kColumns) {}

  const MultiplyArgs& args;
  const void* side;  // Operand that Format::LoadScales wants beside the codes.
  int64_t full_chunks;
  int64_t num_chunks;
};

// Calls step(chunk, bytes, codes) for chunks [begin, end) of kRows rows from `row` on, side by side; `bytes`
// and `codes` have one pointer a row. Rows past the end: the last one again. The last, shorter chunk of a row
// is padded with zeros. `ahead`: asks for the memory of as many rows that come later, from end to end and a
// few lines at a time. A memory serves that faster than many lines of several rows at once. They go to the
// second-level cache: the first has no buffers to spare for lines on their way from memory.
template <class Format, int kRows, class Step>
DSV4_INLINE void ForEachChunk(const Source<Format>& source, int64_t row, int64_t begin, int64_t end,
                              bool ahead, const Step& step) {
  const MultiplyArgs& args = source.args;
  const uint8_t* bytes[kRows];
  const uint8_t* codes[kRows];
  const int64_t first = row < args.num_rows ? row : args.num_rows - 1;
  const uint8_t* const start = args.rows + first * args.row_bytes;
  bytes[0] = start + begin * Format::kBytes;
  codes[0] = Format::kScaleBytes > 0 ? args.scales + first * args.scale_bytes + begin * Format::kScaleBytes
                                     : nullptr;
#pragma GCC unroll 4
  for (int r = 1; r < kRows; ++r) {
    const bool inside = first + r < args.num_rows;
    bytes[r] = bytes[r - 1] + (inside ? args.row_bytes : 0);
    codes[r] = codes[r - 1] + (inside && Format::kScaleBytes > 0 ? args.scale_bytes : 0);
  }
  const int64_t full_end = end < source.full_chunks ? end : source.full_chunks;
  for (int64_t chunk = begin; chunk < full_end; ++chunk) {
    if (ahead) {
      const uint8_t* const later = start + chunk * kRows * Format::kBytes + kAheadBytes;
#pragma GCC unroll 16
      for (int64_t line = 0; line < kRows * Format::kBytes; line += 64)
        __builtin_prefetch(later + line, 0, 2);
      // The codes of a few rows are a few lines, one after the other.
      if (Format::kScaleBytes > 0)
        __builtin_prefetch(
            codes[0] + (kAheadBytes / Format::kBytes + (kRows - 1) * chunk) * Format::kScaleBytes, 0, 2);
    }
    step(chunk, bytes, codes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      bytes[r] += Format::kBytes;
      if (Format::kScaleBytes > 0) codes[r] += Format::kScaleBytes;
    }
  }
  if (full_end == end) return;
  const int64_t tail = args.cols % Format::kColumns;
  const int64_t num_codes = tail * Format::kScaleBytes / Format::kColumns;
  alignas(64) uint8_t padded[kRows][Format::kBytes] = {};
  uint8_t padded_codes[kRows][Format::kScaleBytes + 1] = {};
  for (int r = 0; r < kRows; ++r) {
    __builtin_memcpy(padded[r], bytes[r], static_cast<uint64_t>(tail * Format::kBytes / Format::kColumns));
    for (int64_t i = 0; i < num_codes; ++i) padded_codes[r][i] = codes[r][i];
    bytes[r] = padded[r];
    codes[r] = padded_codes[r];
  }
  step(full_end, bytes, codes);
}

// sum[r][t] += a step of kRows rows times kTokens tokens.
template <class Format, int kRows, int kTokens>
DSV4_INLINE void AddStep(const uint8_t* const* bytes, int step, const typename Format::Scales* scales,
                         const X* x, int64_t x_stride, Vec (&sum)[kRows][kTokens]) {
  // Hidden from the compiler, which would keep a pointer for every token and vector and have no registers
  // left.
  asm("" : "+r"(x));
  constexpr int64_t kVecBytes = static_cast<int64_t>(sizeof(WVec));
  if constexpr (sizeof(Vec) < 64) {
    // Too few registers for the weights of several rows.
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      WVec w[kVecs];
      Format::Decode(bytes[r], step, scales[r], w);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t)
          sum[r][t] = Dot(sum[r][t], w[v], LoadX(x + t * x_stride + v * kLanes));
      }
    }
    return;
  }
  WVec w[kRows][kVecs];
  if constexpr (!Format::kLoaded) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) Format::Decode(bytes[r], step, scales[r], w[r]);
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) {
    if constexpr (Format::kLoaded) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) w[r][v] = LoadW(bytes[r] + (step * kVecs + v) * kVecBytes);
    }
    const X* of_token = x + v * kLanes;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t, of_token += x_stride) {
      // Pointers to all tokens would be too many for the registers.
      if constexpr (kHoldX && kTokens > 1) asm("" : "+r"(of_token));
      auto xv = LoadX(of_token);
      if constexpr (kHoldX && kRows > 1) asm("" : "+v"(xv));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][t] = Dot(sum[r][t], w[r][v], xv);
    }
  }
}

// acc[r][t] += a chunk of kRows rows times kTokens tokens.
template <class Format, int kRows, int kTokens>
DSV4_INLINE void AddChunk(const uint8_t* const* bytes, const typename Format::Scales* scales, const X* x,
                          int64_t x_stride, Vec (&acc)[kRows][kTokens]) {
  using S = Shape<Format>;
  // The compiler would rather keep these in registers than the sums.
  if constexpr (S::InMemory(kTokens)) asm("" : "+m"(acc));
#pragma GCC unroll 8
  for (int part = 0; part < S::kParts; ++part) {
    Vec sum[kRows][kTokens];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) sum[r][t] = S::kFresh ? Zero() : acc[r][t];
    }
#pragma GCC unroll 4
    for (int s = 0; s < Format::kPartSteps; ++s) {
      const int step = part * Format::kPartSteps + s;
      AddStep<Format, kRows, kTokens>(bytes, step, scales, x + step * kVecs * kLanes, x_stride, sum);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec scale = Format::PartScale(scales[r], part);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        acc[r][t] = Format::kScaled ? Fma(sum[r][t], scale, acc[r][t])
                    : S::kFresh     ? Add(acc[r][t], sum[r][t])
                                    : sum[r][t];
      }
    }
  }
}

// The results of kTileRows rows, from the sums of a token.
template <class Format>
DSV4_INLINE void ReduceTile(const Vec* sums, float* out) {
  if constexpr (Shape<Format>::kRowsOfChunk == 2) {
    Format::ReducePairs(sums, out);
  } else {
    Reduce4(sums, out);
  }
}

// The sums of kTileRows rows from `row` on, of which some may lie past the last, for tokens from `token` on.
template <class Format>
DSV4_INLINE void StoreSums(const MultiplyArgs& args, int64_t row, int64_t token, int64_t num_tokens,
                           const Vec* sums) {
  constexpr int64_t kResults = Shape<Format>::kRowsOfChunk;
  float* out = args.out + token * args.out_stride + row * kResults;
  for (int64_t t = 0; t < num_tokens; ++t, sums += kTileRows, out += args.out_stride) {
    if (row + kTileRows <= args.num_rows) {
      ReduceTile<Format>(sums, out);
      continue;
    }
    float all[kTileRows * kResults];
    ReduceTile<Format>(sums, all);
    for (int64_t r = 0; r < (args.num_rows - row) * kResults; ++r) out[r] = all[r];
  }
}

// Tokens and rows that a group of tokens meets in one go.
struct Visit {
  int64_t token;  // The group: tokens from this on.
  int64_t num_tokens;
  int64_t row;  // Tiles of rows from this on.
  int64_t num_tiles;
  int64_t begin;  // Chunks of these rows.
  int64_t end;
  int64_t turn;  // Share of the later rows that visit `turn` of `turns` asks for.
  int64_t turns;
};

// Adds chunks of a visit: sums[tile][t * kTileRows + r] is that of row r of the tile and token t of the
// group. The first chunks begin the sums, the last ones make them results. A visit of whole rows keeps no
// sums between tiles.
template <class Format, int kTokens, bool kWholeRows>
__attribute__((noinline)) static void AddTiles(const Source<Format>& source, const Visit& visit,
                                               Vec (*sums)[Shape<Format>::kMostTokens * kTileRows]) {
  constexpr int kRows = Shape<Format>::Rows(kTokens);
  static_assert(kTileRows % kRows == 0);
  const int64_t x_stride = source.args.x_stride;
  const X* const x = static_cast<const X*>(source.args.x) + visit.token * x_stride;
  Vec own[kTokens * kTileRows];
  for (int64_t tile = 0; tile < visit.num_tiles; ++tile) {
    Vec* const of_tile = kWholeRows ? own : sums[tile];
    const int64_t row = visit.row + tile * kTileRows;
    for (int64_t first = 0; first < kTileRows; first += kRows) {
      Vec acc[kRows][kTokens];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t)
          acc[r][t] = kWholeRows || visit.begin == 0 ? Zero() : of_tile[t * kTileRows + first + r];
      }
      const bool ahead = first / kRows % visit.turns == visit.turn;
      ForEachChunk<Format, kRows>(
          source, row + first, visit.begin, visit.end, ahead,
          [&](int64_t chunk, const uint8_t* const* bytes, const uint8_t* const* codes)
              __attribute__((always_inline)) {
                typename Format::Scales scales[kRows];
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r) scales[r] = Format::LoadScales(codes[r], source.side, chunk);
                AddChunk<Format, kRows, kTokens>(bytes, scales, x + chunk * Format::kColumns, x_stride, acc);
              });
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) of_tile[t * kTileRows + first + r] = acc[r][t];
      }
    }
    if (kWholeRows || visit.end == source.num_chunks)
      StoreSums<Format>(source.args, row, visit.token, kTokens, of_tile);
  }
}

// AddTiles for num_tokens <= kMost.
template <class Format, int kMost, bool kWholeRows>
static void AddTilesOf(const Source<Format>& source, const Visit& visit,
                       Vec (*sums)[Shape<Format>::kMostTokens * kTileRows]) {
  if constexpr (kMost > 1) {
    if (visit.num_tokens < kMost) return AddTilesOf<Format, kMost - 1, kWholeRows>(source, visit, sums);
  }
  AddTiles<Format, kMost, kWholeRows>(source, visit, sums);
}

template <class Format>
static int64_t PanelChunks(int64_t num_tokens) {
  const int64_t fitting = kPanelBytes / (num_tokens * Format::kColumns * static_cast<int64_t>(sizeof(X)));
  return fitting > 1 ? fitting : 1;
}

// `side` is handed to Format::LoadScales.
template <class Format>
static void MultiplyWith(const MultiplyArgs& args, const void* side) {
  constexpr int kMost = Shape<Format>::kMostTokens;
  constexpr int64_t kTiles = kBlockRows / kTileRows;
  if (args.num_tokens == 0 || args.num_rows == 0) return;
  const Source<Format> source(args, side);
  const bool stream = args.num_tokens <= kMaxStreamTokens;
  // As few groups of tokens as possible, of nearly equal sizes.
  const int64_t num_groups = (args.num_tokens + kMost - 1) / kMost;
  Visit visit;
  if (stream) {
    visit.begin = 0;
    visit.end = source.num_chunks;
  }
  if (stream && num_groups == 1) {
    visit.token = 0;
    visit.num_tokens = args.num_tokens;
    visit.row = 0;
    visit.num_tiles = (args.num_rows + kTileRows - 1) / kTileRows;
    visit.turn = 0;
    visit.turns = 1;
    return AddTilesOf<Format, kMost, true>(source, visit, nullptr);
  }
  // Share of the rows that stays in the first-level cache between groups.
  const int64_t tiles_near = kPanelBytes / (kTileRows * args.row_bytes + 1);
  const int64_t block_tiles = !stream               ? kTiles
                              : tiles_near < 1      ? 1
                              : tiles_near < kTiles ? tiles_near
                                                    : kTiles;
  Vec sums[kTiles][kMost * kTileRows];
  for (int64_t first = 0; first < args.num_rows; first += block_tiles * kTileRows) {
    const int64_t tiles_left = (args.num_rows - first + kTileRows - 1) / kTileRows;
    visit.row = first;
    visit.num_tiles = tiles_left < block_tiles ? tiles_left : block_tiles;
    // With many rows the first group asks for all that comes later.
    visit.turns = block_tiles == 1 ? num_groups : 1;
    for (int64_t group = 0; group < num_groups; ++group) {
      visit.token = group * args.num_tokens / num_groups;
      visit.num_tokens = (group + 1) * args.num_tokens / num_groups - visit.token;
      visit.turn = group;
      if (stream) {
        AddTilesOf<Format, kMost, true>(source, visit, nullptr);
        continue;
      }
      const int64_t panel = PanelChunks<Format>(visit.num_tokens);
      for (int64_t begin = 0; begin < source.num_chunks; begin += panel) {
        visit.begin = begin;
        visit.end = begin + panel < source.num_chunks ? begin + panel : source.num_chunks;
        AddTilesOf<Format, kMost, false>(source, visit, sums);
      }
    }
  }
}

// Rows of an unscaled format, unpacked.
template <class Format>
struct Unpacked {
  static constexpr int64_t kColumns = Format::kColumns;
  static constexpr int64_t kBytes = kColumns / kLanes * static_cast<int64_t>(sizeof(WVec));
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kPartSteps = Format::kPartSteps;
  static constexpr bool kScaled = false;
  static constexpr bool kLoaded = true;
  static_assert(!Format::kScaled);
  static_assert(kBlockRows * kBytes * (kPackColumns / kColumns) <= kUnpackedBytesPerPack);
  struct Scales {};
  static Scales LoadScales(const uint8_t*, const void*, int64_t) { return {}; }
  static Vec PartScale(const Scales&, int) { return Zero(); }
};

// MultiplyWith for many tokens: blocks of rows are unpacked to `scratch`, which stays in the second-level
// cache.
template <class Format>
[[maybe_unused]] static void MultiplyUnpacked(const MultiplyArgs& args, const void* side, uint8_t* scratch) {
  const Source<Format> source(args, side);
  MultiplyArgs block = args;
  block.rows = scratch;
  block.row_bytes = source.num_chunks * Unpacked<Format>::kBytes;
  block.cols = source.num_chunks * Format::kColumns;
  for (int64_t first = 0; first < args.num_rows; first += kBlockRows) {
    block.num_rows = args.num_rows - first < kBlockRows ? args.num_rows - first : kBlockRows;
    block.out = args.out + first;
    uint8_t* to = scratch;
    for (int64_t row = 0; row < block.num_rows; ++row) {
      ForEachChunk<Format, 1>(
          source, first + row, 0, source.num_chunks, false,
          [&](int64_t chunk, const uint8_t* const* bytes, const uint8_t* const* codes)
              __attribute__((always_inline)) {
                const typename Format::Scales scales = Format::LoadScales(codes[0], source.side, chunk);
#pragma GCC unroll 4
                for (int step = 0; step < Shape<Format>::kSteps; ++step) {
                  WVec w[kVecs];
                  Format::Decode(bytes[0], step, scales, w);
#pragma GCC unroll 16
                  for (int v = 0; v < kVecs; ++v, to += sizeof(WVec)) StoreW(to, w[v]);
                }
              });
    }
    MultiplyWith<Unpacked<Format>>(block, nullptr);
  }
}

// Two rows of half a chunk, which lie side by side, as one row of a whole chunk. A lane belongs to one of the
// two, and meets the activations of its columns in the half. It adds the same numbers as for a row that is
// padded to a chunk.
template <class Format>
struct Paired : Format {
  static constexpr bool kPaired = true;
};

template <class Format>
static void MultiplyPairs(const MultiplyArgs& args) {
  static_assert(Format::kColumns == kPackColumns);
  static_assert(kMaxStreamTokens * kPackColumns * static_cast<int64_t>(sizeof(X)) <= kScratchBytesPerPack);
  MultiplyArgs pairs = args;
  pairs.row_bytes = Format::kBytes;
  pairs.scale_bytes = Format::kScaleBytes;
  pairs.num_rows = args.num_rows / 2;
  pairs.cols = Format::kColumns;
  pairs.x = args.scratch;
  pairs.x_stride = kPackColumns;
  for (int64_t first = 0; first < args.num_tokens; first += kMaxStreamTokens) {
    const int64_t left = args.num_tokens - first;
    pairs.num_tokens = left < kMaxStreamTokens ? left : kMaxStreamTokens;
    pairs.out = args.out + first * args.out_stride;
    for (int64_t t = 0; t < pairs.num_tokens; ++t)
      Format::RepeatHalf(static_cast<const X*>(args.x) + (first + t) * args.x_stride,
                         static_cast<X*>(args.scratch) + t * kPackColumns, kPackColumns * sizeof(X));
    MultiplyWith<Paired<Format>>(pairs, nullptr);
  }
}

template <class Format>
static void Multiply(const MultiplyArgs& args) {
  if constexpr (requires { Format::kHalvesApart; }) {
    const bool halves = 2 * args.row_bytes == Format::kBytes && 2 * args.scale_bytes == Format::kScaleBytes &&
                        2 * args.cols == Format::kColumns;
    if (halves && args.num_rows % 2 == 0) return MultiplyPairs<Format>(args);
  }
  MultiplyWith<Format>(args, args.chunk_scales);
}
