// The loops around a tier's chunk decoders, included by every matrix unit inside its own namespace after it has defined
//
//   Vec, WVec        an accumulator of fp32 lanes; a vector of unpacked weights
//   X                element of packed activations
//   kVecs, kLanes    a step is kVecs weight vectors of kLanes elements
//   kPlainTokens, kFreshTokens   tokens of a tile of kTileRows unpacked rows, without and with fresh sums
//   Zero, Dot, Fma, Add, Reduce, Reduce4, LoadX, LoadW, StoreW, LoadVec, StoreVec
//
// and formats, each with
//
//   kColumns         of a chunk, a divisor of kPackColumns; kBytes and kScaleBytes of it
//   kPrefetchBytes   how far ahead of a row's reading memory is asked for; 0: not at all
//   kPartSteps       steps that share a scale vector, a part
//   kScaled          false: PartScale is not asked for
//   Scales LoadScales(codes, side, chunk), Vec PartScale(scales, part)
//   void Decode(bytes, step, scales, WVec*)
//
// The sum of a pair (row, token) is always the same sequence, whether the weights come from memory (few tokens) or from an
// unpacked block (many). Scaled formats have a fresh sum for each part, added with one fused multiply-add with the scale.
// Others have one chain from end to end, unless its lanes are so few that the error of a long chain would show.
//
// No include guard: one inclusion per unit.

#define DSV4_INLINE static inline __attribute__((always_inline))

// Up to so many tokens have all their sums in registers; up to so many, the sums of a few rows in the first-level cache.
constexpr int64_t kMaxFewTokens = 3;
constexpr int64_t kMaxStreamTokens = 16;
constexpr int kTileRows = 4;

template <class Format>
struct Shape {
  static constexpr int kSteps = static_cast<int>(Format::kColumns / (kVecs * kLanes));
  static constexpr int kParts = kSteps / Format::kPartSteps;
  static_assert(kSteps * kVecs * kLanes == Format::kColumns && kParts * Format::kPartSteps == kSteps);
  static_assert(kPackColumns % Format::kColumns == 0);

  static constexpr bool kFresh = Format::kScaled || sizeof(Vec) < 64;
  static constexpr int kTileTokens = kFresh ? kFreshTokens : kPlainTokens;

  // An unpacked chunk of a row: its weight vectors, then its scale vectors. The chunks of kTileRows rows alternate.
  static constexpr int64_t kWeightBytes = int64_t{kSteps} * kVecs * static_cast<int64_t>(sizeof(WVec));
  static constexpr int64_t kUnpackedBytes =
      kWeightBytes + (Format::kScaled ? int64_t{kParts} * static_cast<int64_t>(sizeof(Vec)) : 0);
  static constexpr int64_t kTileBytes = kTileRows * kUnpackedBytes;
  static_assert(kUnpackedBytes * (kPackColumns / Format::kColumns) <= kScratchBytesPerPack);
};

// Adds a part's fresh sum.
template <class Format>
DSV4_INLINE Vec Accumulate(Vec acc, Vec sum, Vec scale) {
  return Format::kScaled ? Fma(sum, scale, acc) : Add(acc, sum);
}

// The rows of a call.
template <class Format>
struct Source {
  Source(const MultiplyArgs& a, const void* side_data)
      : args(a),
        side(side_data),
        full_chunks(a.cols / Format::kColumns),
        num_chunks((a.cols + Format::kColumns - 1) / Format::kColumns),
        row_bytes(a.cols * Format::kBytes / Format::kColumns) {}

  // Rows past the end: the last one.
  const uint8_t* Row(int64_t row) const {
    const int64_t inside = row < args.num_rows ? row : args.num_rows - 1;
    return args.row_pointers != nullptr ? args.row_pointers[inside] : args.rows + inside * args.row_bytes;
  }
  const uint8_t* Codes(int64_t row) const {
    const int64_t inside = row < args.num_rows ? row : args.num_rows - 1;
    return Format::kScaleBytes > 0 ? args.scales + inside * args.scale_bytes : nullptr;
  }
  const MultiplyArgs& args;
  const void* side;  // What Format::LoadScales wants beside the codes.
  int64_t full_chunks;
  int64_t num_chunks;
  int64_t row_bytes;  // Of the elements; args.row_bytes may be more.
};

// Calls step(chunk, bytes, scales) for chunks [begin, end) of a row. The last, shorter chunk of a row is padded with zeros.
// Memory is asked for `ahead` bytes before it is read; 0: the machine sees to it.
template <class Format, class Step>
DSV4_INLINE void ForEachChunk(const Source<Format>& source, int64_t row, int64_t begin, int64_t end,
                              int64_t ahead, const Step& step) {
  const uint8_t* bytes = source.Row(row) + begin * Format::kBytes;
  const uint8_t* codes = Format::kScaleBytes > 0 ? source.Codes(row) + begin * Format::kScaleBytes : nullptr;
  const int64_t full_end = end < source.full_chunks ? end : source.full_chunks;
  for (int64_t chunk = begin; chunk < full_end; ++chunk) {
    if (ahead != 0) {
#pragma GCC unroll 8
      for (int64_t line = 0; line < Format::kBytes; line += 64) __builtin_prefetch(bytes + ahead + line);
    }
    step(chunk, bytes, Format::LoadScales(codes, source.side, chunk));
    bytes += Format::kBytes;
    if (Format::kScaleBytes > 0) codes += Format::kScaleBytes;
  }
  if (full_end == end) return;
  const int64_t tail = source.args.cols % Format::kColumns;
  alignas(64) uint8_t padded[Format::kBytes] = {};
  uint8_t padded_codes[Format::kScaleBytes + 1] = {};
  __builtin_memcpy(padded, bytes, static_cast<uint64_t>(tail * Format::kBytes / Format::kColumns));
  const int64_t num_codes = tail * Format::kScaleBytes / Format::kColumns;
  for (int64_t i = 0; i < num_codes; ++i) padded_codes[i] = codes[i];
  step(full_end, padded, Format::LoadScales(padded_codes, source.side, full_end));
}

// The sums of kTileRows rows from `row` on, of which some may lie past the last.
static void StoreSums(const MultiplyArgs& args, int64_t row, int64_t token, int64_t num_tokens,
                      const Vec* sums) {
  for (int64_t t = 0; t < num_tokens; ++t) {
    float* const out = args.out + (token + t) * args.out_stride + row;
    if (row + kTileRows <= args.num_rows) {
      Reduce4(sums + t * kTileRows, out);
      continue;
    }
    float all[kTileRows];
    Reduce4(sums + t * kTileRows, all);
    for (int64_t r = 0; row + r < args.num_rows; ++r) out[r] = all[r];
  }
}

// One row after the other against kTokens tokens: weights go from memory to registers, once.
template <class Format, int kTokens>
static void FewTokens(const Source<Format>& source) {
  const MultiplyArgs& args = source.args;
  const X* const x = static_cast<const X*>(args.x);
  const int64_t x_stride = args.x_stride;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    Vec acc[kTokens];
    for (int t = 0; t < kTokens; ++t) acc[t] = Zero();
    ForEachChunk<Format>(
        source, row, 0, source.num_chunks, Format::kPrefetchBytes,
        [&](int64_t chunk, const uint8_t* bytes, const typename Format::Scales& scales)
            __attribute__((always_inline)) {
#pragma GCC unroll 8
              for (int part = 0; part < Shape<Format>::kParts; ++part) {
                Vec sum[kTokens];
#pragma GCC unroll 4
                for (int t = 0; t < kTokens; ++t) sum[t] = Shape<Format>::kFresh ? Zero() : acc[t];
#pragma GCC unroll 4
                for (int s = 0; s < Format::kPartSteps; ++s) {
                  const int step = part * Format::kPartSteps + s;
                  WVec w[kVecs];
                  Format::Decode(bytes, step, scales, w);
                  const X* const from = x + chunk * Format::kColumns + step * (kVecs * kLanes);
#pragma GCC unroll 16
                  for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 4
                    for (int t = 0; t < kTokens; ++t)
                      sum[t] = Dot(sum[t], w[v], LoadX(from + t * x_stride + v * kLanes));
                  }
                }
                const Vec scale = Format::PartScale(scales, part);
#pragma GCC unroll 4
                for (int t = 0; t < kTokens; ++t)
                  acc[t] = Shape<Format>::kFresh ? Accumulate<Format>(acc[t], sum[t], scale) : sum[t];
              }
            });
    for (int t = 0; t < kTokens; ++t) args.out[t * args.out_stride + row] = Reduce(acc[t]);
  }
}

// Chunks [begin, end) of a panel's row.
template <class Format>
static void Unpack(const Source<Format>& source, int64_t row, int64_t begin, int64_t end, int64_t ahead,
                   uint8_t* to) {
  ForEachChunk<Format>(
      source, row, begin, end, ahead,
      [&](int64_t, const uint8_t* bytes, const typename Format::Scales& scales)
          __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int step = 0; step < Shape<Format>::kSteps; ++step) {
              WVec w[kVecs];
              Format::Decode(bytes, step, scales, w);
#pragma GCC unroll 16
              for (int v = 0; v < kVecs; ++v)
                StoreW(to + (step * kVecs + v) * static_cast<int64_t>(sizeof(WVec)), w[v]);
            }
            if (Format::kScaled) {
#pragma GCC unroll 4
              for (int part = 0; part < Shape<Format>::kParts; ++part) {
                StoreVec(to + Shape<Format>::kWeightBytes + part * static_cast<int64_t>(sizeof(Vec)),
                         Format::PartScale(scales, part));
              }
            }
            to += Shape<Format>::kTileBytes;
          });
}

// Memory to ask for while the products of tiles keep the core busy: `bytes` bytes at each of kTileRows places, some lines a
// chunk.
struct Prefetches {
  const uint8_t* rows[kTileRows] = {};
  int64_t bytes = 0;
  int64_t lines = 0;
  int64_t at = 0;
  int row = 0;

  DSV4_INLINE void Next(Prefetches& self) {
    for (int64_t i = 0; i < self.lines && self.row < kTileRows; ++i) {
      // To the second-level cache: the first has no places to spare for lines on their way from memory.
      __builtin_prefetch(self.rows[self.row] + self.at, 0, 2);
      self.at += 64;
      if (self.at < self.bytes) continue;
      self.at = 0;
      ++self.row;
    }
  }
};

struct NoPrefetches {
  DSV4_INLINE void Next(NoPrefetches&) {}
};

// sums[row][token] += num_steps steps of kTileRows unpacked rows times kTokens tokens.
template <class Format, int kTokens>
DSV4_INLINE void AddSteps(const uint8_t* unpacked, int num_steps, const X* x, int64_t x_stride,
                          Vec (&sums)[kTileRows][kTokens]) {
  using S = Shape<Format>;
  for (int step = 0; step < num_steps; ++step) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      WVec w[kTileRows];
#pragma GCC unroll 4
      for (int r = 0; r < kTileRows; ++r)
        w[r] = LoadW(unpacked + r * S::kUnpackedBytes + v * static_cast<int64_t>(sizeof(WVec)));
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const auto xv = LoadX(x + t * x_stride + v * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kTileRows; ++r) sums[r][t] = Dot(sums[r][t], w[r], xv);
      }
    }
    unpacked += kVecs * static_cast<int64_t>(sizeof(WVec));
    x += kVecs * kLanes;
  }
}

// sums[token][row] += num_chunks chunks of kTileRows unpacked rows times kTokens tokens.
template <class Format, int kTokens, class Ahead>
static void Tile(const uint8_t* unpacked, int64_t num_chunks, const X* x, int64_t x_stride, Vec* sums,
                 Ahead& ahead) {
  using S = Shape<Format>;
  Vec acc[kTileRows][kTokens];
#pragma GCC unroll 4
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) acc[r][t] = sums[t * kTileRows + r];
  }
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    if constexpr (!S::kFresh) {
      AddSteps<Format, kTokens>(unpacked, S::kSteps, x, x_stride, acc);
    } else {
      for (int part = 0; part < S::kParts; ++part) {
        Vec fresh[kTileRows][kTokens];
#pragma GCC unroll 4
        for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) fresh[r][t] = Zero();
        }
        const int step = part * Format::kPartSteps;
        AddSteps<Format, kTokens>(unpacked + step * kVecs * static_cast<int64_t>(sizeof(WVec)),
                                  Format::kPartSteps, x + step * kVecs * kLanes, x_stride, fresh);
#pragma GCC unroll 4
        for (int r = 0; r < kTileRows; ++r) {
          const Vec scale = Format::kScaled ? LoadVec(unpacked + r * S::kUnpackedBytes + S::kWeightBytes +
                                                      part * static_cast<int64_t>(sizeof(Vec)))
                                            : Zero();
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) acc[r][t] = Accumulate<Format>(acc[r][t], fresh[r][t], scale);
        }
      }
    }
    Ahead::Next(ahead);
    unpacked += S::kTileBytes;
    x += Format::kColumns;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) sums[t * kTileRows + r] = acc[r][t];
  }
}

// Any number of tokens, in as few tiles of up to kMost as possible, of nearly equal sizes.
template <class Format, int kMost, class Ahead>
static void Tiles(const uint8_t* unpacked, int64_t num_chunks, const X* x, int64_t x_stride,
                  int64_t num_tokens, Vec* sums, Ahead& ahead) {
  static_assert(kMost <= 6);
  while (num_tokens > 0) {
    const int64_t left = (num_tokens + kMost - 1) / kMost;
    const int64_t count = (num_tokens + left - 1) / left;
    const auto run = [&]<int kTokens>() {
      if constexpr (kTokens <= kMost) Tile<Format, kTokens>(unpacked, num_chunks, x, x_stride, sums, ahead);
    };
    switch (count) {
      case 1:
        run.template operator()<1>();
        break;
      case 2:
        run.template operator()<2>();
        break;
      case 3:
        run.template operator()<3>();
        break;
      case 4:
        run.template operator()<4>();
        break;
      case 5:
        run.template operator()<5>();
        break;
      default:
        run.template operator()<6>();
        break;
    }
    x += count * x_stride;
    sums += count * kTileRows;
    num_tokens -= count;
  }
}

// So many columns of the activations of a tile's tokens, and of unpacked rows, share the first-level cache.
template <class Format>
constexpr int64_t kPanelChunks = 2048 / (Format::kColumns * static_cast<int64_t>(sizeof(X)));

// kTileRows rows at a time, a panel of columns at a time, is unpacked to the first-level cache and meets all tokens there. The
// next panel is asked for between the products.
template <class Format>
static void StreamTokens(const Source<Format>& source) {
  using S = Shape<Format>;
  static_assert(kPanelChunks<Format> > 0);
  const MultiplyArgs& args = source.args;
  const X* const x = static_cast<const X*>(args.x);
  uint8_t* const unpacked = static_cast<uint8_t*>(args.scratch);
  // Asking for memory takes registers too: four tokens leave enough.
  constexpr int kMost = S::kTileTokens < 4 ? S::kTileTokens : 4;
  const int64_t num_tiles = (args.num_tokens + kMost - 1) / kMost;
  Vec sums[kMaxStreamTokens * kTileRows];
  for (int64_t row = 0; row < args.num_rows; row += kTileRows) {
    for (int64_t i = 0; i < args.num_tokens * kTileRows; ++i) sums[i] = Zero();
    for (int64_t begin = 0; begin < source.num_chunks; begin += kPanelChunks<Format>) {
      const bool last = begin + kPanelChunks<Format> >= source.num_chunks;
      const int64_t end = last ? source.num_chunks : begin + kPanelChunks<Format>;
      Prefetches prefetches;
      prefetches.bytes = kPanelChunks<Format> * Format::kBytes;
      if (last && prefetches.bytes > source.row_bytes) prefetches.bytes = source.row_bytes;
      prefetches.lines = (prefetches.bytes * kTileRows + 63) / 64 / ((end - begin) * num_tiles) + 1;
      for (int r = 0; r < kTileRows; ++r) {
        Unpack(source, row + r, begin, end, 0, unpacked + r * S::kUnpackedBytes);
        prefetches.rows[r] =
            last ? source.Row(row + r + kTileRows) : source.Row(row + r) + end * Format::kBytes;
      }
      Tiles<Format, kMost>(unpacked, end - begin, x + begin * Format::kColumns, args.x_stride,
                           args.num_tokens, sums, prefetches);
    }
    StoreSums(args, row, 0, args.num_tokens, sums);
  }
}

// Blocks of kBlockRows rows are unpacked to the second-level cache; a few tokens at a time, and so many columns that they
// stay in the first-level cache, meet all of them.
template <class Format>
static void ManyTokens(const Source<Format>& source) {
  constexpr int64_t kTiles = kBlockRows / kTileRows;
  constexpr int64_t kGroupTokens = 6;
  NoPrefetches none;
  const MultiplyArgs& args = source.args;
  uint8_t* const unpacked = static_cast<uint8_t*>(args.scratch);
  const int64_t tile_bytes = source.num_chunks * Shape<Format>::kTileBytes;
  Vec sums[kTiles][kGroupTokens * kTileRows];
  for (int64_t first = 0; first < args.num_rows; first += kBlockRows) {
    const int64_t num_rows = args.num_rows - first < kBlockRows ? args.num_rows - first : kBlockRows;
    const int64_t num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      for (int r = 0; r < kTileRows; ++r) {
        Unpack(source, first + tile * kTileRows + r, 0, source.num_chunks, Format::kPrefetchBytes,
               unpacked + tile * tile_bytes + r * Shape<Format>::kUnpackedBytes);
      }
    }
    for (int64_t token = 0; token < args.num_tokens; token += kGroupTokens) {
      const int64_t num_tokens =
          args.num_tokens - token < kGroupTokens ? args.num_tokens - token : kGroupTokens;
      const X* const x = static_cast<const X*>(args.x) + token * args.x_stride;
      for (int64_t tile = 0; tile < num_tiles; ++tile) {
        for (Vec& sum : sums[tile]) sum = Zero();
      }
      for (int64_t chunk = 0; chunk < source.num_chunks; chunk += kPanelChunks<Format>) {
        const int64_t left = source.num_chunks - chunk;
        for (int64_t tile = 0; tile < num_tiles; ++tile) {
          Tiles<Format, Shape<Format>::kTileTokens>(
              unpacked + tile * tile_bytes + chunk * Shape<Format>::kTileBytes,
              left < kPanelChunks<Format> ? left : kPanelChunks<Format>, x + chunk * Format::kColumns,
              args.x_stride, num_tokens, sums[tile], none);
        }
      }
      for (int64_t tile = 0; tile < num_tiles; ++tile)
        StoreSums(args, first + tile * kTileRows, token, num_tokens, sums[tile]);
    }
  }
}

// `side` is handed to Format::LoadScales.
template <class Format>
static void MultiplyWith(const MultiplyArgs& args, const void* side) {
  if (args.num_tokens == 0 || args.num_rows == 0) return;
  const Source<Format> source(args, side);
  static_assert(kMaxFewTokens == 3);
  switch (args.num_tokens) {
    case 1:
      return FewTokens<Format, 1>(source);
    case 2:
      return FewTokens<Format, 2>(source);
    case 3:
      return FewTokens<Format, 3>(source);
    default:
      if (args.num_tokens <= kMaxStreamTokens) return StreamTokens<Format>(source);
      return ManyTokens<Format>(source);
  }
}

template <class Format>
static void Multiply(const MultiplyArgs& args) {
  MultiplyWith<Format>(args, args.chunk_scales);
}
