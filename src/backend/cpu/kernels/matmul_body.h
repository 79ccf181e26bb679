// The loops around a tier's chunk decoders, included by every matmul translation unit inside its own namespace after it has defined
//
//   Vec, WVec        an accumulator of fp32 lanes; a vector of unpacked weights
//   X                element of packed activations
//   kVecs, kLanes    a step is kVecs weight vectors of kLanes elements
//   kRowsOfOne                   rows that meet one token side by side
//   kPlainRows, kPlainTokens     rows that meet several tokens, and how many, without fresh sums
//   kFreshRows, kFreshTokens     and with them
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
// Weights are unpacked in registers: a few rows meet a few tokens there, and when there are more tokens the rows are unpacked
// again. A format for which that costs more than loads of unpacked weights uses MultiplyUnpacked for many tokens.
//
// The sum of a pair (row, token) is always the same sequence. Scaled formats have a fresh sum for each part, added with one
// fused multiply-add with the scale. Others have one chain from end to end, unless its lanes are so few that the error of a
// long chain would show.
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
  static constexpr int kMostTokens = kFresh ? kFreshTokens : (Format::kLoaded ? kLoadedTokens : kPlainTokens);
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
  const void* side;  // What Format::LoadScales wants beside the codes.
  int64_t full_chunks;
  int64_t num_chunks;
};

// Calls step(chunk, bytes, codes) for chunks [begin, end) of kRows rows from `row` on, side by side; `bytes` and `codes` have
// one pointer a row. Rows past the end: the last one again. The last, shorter chunk of a row is padded with zeros. `ahead`: asks for
// the memory of as many rows that come later, from end to end and a few lines at a time, which a memory serves faster than many lines of
// several rows at once. They go to the second-level cache: the first has no places to spare for lines on their way from memory.
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
  // Hidden from the compiler, which would keep a pointer for every token and vector and have no registers left.
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
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const auto xv = LoadX(x + t * x_stride + v * kLanes);
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

// The sums of kTileRows rows from `row` on, of which some may lie past the last, for tokens from `token` on.
DSV4_INLINE void StoreSums(const MultiplyArgs& args, int64_t row, int64_t token, int64_t num_tokens,
                           const Vec* sums) {
  float* out = args.out + token * args.out_stride + row;
  for (int64_t t = 0; t < num_tokens; ++t, sums += kTileRows, out += args.out_stride) {
    if (row + kTileRows <= args.num_rows) {
      Reduce4(sums, out);
      continue;
    }
    float all[kTileRows];
    Reduce4(sums, all);
    for (int64_t r = 0; row + r < args.num_rows; ++r) out[r] = all[r];
  }
}

// What a group of tokens meets in one go.
struct Visit {
  int64_t token;  // The group: tokens from this on.
  int64_t num_tokens;
  int64_t row;  // Tiles of rows from this on.
  int64_t num_tiles;
  int64_t begin;  // Chunks of these rows.
  int64_t end;
  int64_t turn;  // Of `turns` visits to these rows, visit `turn` asks for its share of later ones.
  int64_t turns;
};

// Adds chunks of a visit: sums[tile][t * kTileRows + r] is that of row r of the tile and token t of the group. The first
// chunks begin the sums, the last ones make them results.
template <class Format, int kTokens>
__attribute__((noinline)) static void AddTiles(const Source<Format>& source, const Visit& visit,
                                               Vec (*sums)[Shape<Format>::kMostTokens * kTileRows]) {
  constexpr int kRows = Shape<Format>::Rows(kTokens);
  static_assert(kTileRows % kRows == 0);
  const int64_t x_stride = source.args.x_stride;
  const X* const x = static_cast<const X*>(source.args.x) + visit.token * x_stride;
  for (int64_t tile = 0; tile < visit.num_tiles; ++tile, ++sums) {
    const int64_t row = visit.row + tile * kTileRows;
    for (int64_t first = 0; first < kTileRows; first += kRows) {
      Vec acc[kRows][kTokens];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t)
          acc[r][t] = visit.begin == 0 ? Zero() : (*sums)[t * kTileRows + first + r];
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
        for (int t = 0; t < kTokens; ++t) (*sums)[t * kTileRows + first + r] = acc[r][t];
      }
    }
    if (visit.end == source.num_chunks) StoreSums(source.args, row, visit.token, kTokens, *sums);
  }
}

// AddTiles for num_tokens <= kMost.
template <class Format, int kMost>
static void AddTilesOf(const Source<Format>& source, const Visit& visit,
                       Vec (*sums)[Shape<Format>::kMostTokens * kTileRows]) {
  if constexpr (kMost > 1) {
    if (visit.num_tokens < kMost) return AddTilesOf<Format, kMost - 1>(source, visit, sums);
  }
  AddTiles<Format, kMost>(source, visit, sums);
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
  const int64_t block_rows = stream ? kTileRows : kBlockRows;
  // As few groups of tokens as possible, of nearly equal sizes.
  const int64_t num_groups = (args.num_tokens + kMost - 1) / kMost;
  Vec sums[kTiles][kMost * kTileRows];
  for (int64_t first = 0; first < args.num_rows; first += block_rows) {
    const int64_t left = args.num_rows - first;
    Visit visit;
    visit.row = first;
    visit.num_tiles = ((left < block_rows ? left : block_rows) + kTileRows - 1) / kTileRows;
    visit.turns = stream ? num_groups : 1;
    for (int64_t group = 0; group < num_groups; ++group) {
      visit.token = group * args.num_tokens / num_groups;
      visit.num_tokens = (group + 1) * args.num_tokens / num_groups - visit.token;
      visit.turn = group;
      const int64_t panel = stream ? source.num_chunks : PanelChunks<Format>(visit.num_tokens);
      for (int64_t begin = 0; begin < source.num_chunks; begin += panel) {
        visit.begin = begin;
        visit.end = begin + panel < source.num_chunks ? begin + panel : source.num_chunks;
        AddTilesOf<Format, kMost>(source, visit, sums);
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

// MultiplyWith for many tokens: blocks of rows are unpacked to `scratch`, which stays in the second-level cache.
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

template <class Format>
static void Multiply(const MultiplyArgs& args) {
  MultiplyWith<Format>(args, args.chunk_scales);
}
