// The loops around a tier's chunk decoders, included by every matrix unit inside its own namespace after it has defined
//
//   Vec, WVec          an accumulator of fp32 lanes; a vector of unpacked weights
//   X                  element of packed activations
//   kParts, kVecs      a chunk is kParts groups of kVecs weight vectors, each group with one scale vector
//   kLanes             elements of a weight vector: kParts * kVecs * kLanes == kChunk
//   kTileRows, kTileTokens (2 or 3), kPrefetchBytes
//   Zero, Dot, Fma, Add, Reduce, LoadX, LoadW, StoreW, LoadVec, StoreVec
//   formats: kBytes and kScaleBytes of a chunk, kScaled, Scales LoadScales(codes, chunk_scale),
//            void Decode(bytes, part, WVec*), Vec PartScale(scales, part)
//
// The sum of a pair (row, token) is always the same sequence: per part a fresh sum over its vectors, then one fused
// multiply-add with the scale. Fresh sums keep the dependency chain at one instruction a part, and make the result the same
// whether the weights come from memory (few tokens) or from the unpacked block (many).
//
// No include guard: one inclusion per unit.

#define DSV4_INLINE static inline __attribute__((always_inline))

// Up to so many tokens go through registers only; more do not fit into the first-level cache beside each other.
constexpr int64_t kMaxFewTokens = 2;
constexpr int64_t kPartElements = int64_t{kVecs} * kLanes;

template <class Format>
struct RowReader {
  explicit RowReader(const MultiplyArgs& a)
      : args(a), full_chunks(a.cols / kChunk), tail((a.cols % kChunk) * Format::kBytes / kChunk) {}

  const uint8_t* Row(int64_t row) const {
    return args.row_pointers != nullptr ? args.row_pointers[row] : args.rows + row * args.row_bytes;
  }
  const uint8_t* ScaleCodes(int64_t row) const {
    return Format::kScaleBytes > 0 ? args.scales + row * args.scale_bytes : nullptr;
  }
  float ChunkScale(int64_t chunk) const {
    return args.chunk_scales != nullptr ? args.chunk_scales[chunk] : 1.0F;
  }

  // Calls step(chunk, bytes, scales) for every chunk of a row; the last, shorter one is padded with zeros.
  template <class Step>
  DSV4_INLINE void ForEachChunk(const RowReader& self, int64_t row, const Step& step) {
    const uint8_t* bytes = self.Row(row);
    const uint8_t* codes = self.ScaleCodes(row);
    for (int64_t chunk = 0; chunk < self.full_chunks; ++chunk) {
#pragma GCC unroll 8
      for (int64_t line = 0; line < Format::kBytes; line += 64)
        __builtin_prefetch(bytes + kPrefetchBytes + line);
      step(chunk, bytes, Format::LoadScales(codes, self.ChunkScale(chunk)));
      bytes += Format::kBytes;
      codes += Format::kScaleBytes;
    }
    if (self.tail > 0) {
      alignas(64) uint8_t padded[Format::kBytes] = {};
      uint8_t padded_codes[Format::kScaleBytes + 1] = {};
      __builtin_memcpy(padded, bytes, static_cast<uint64_t>(self.tail));
      const int64_t num_codes = self.args.cols % kChunk * Format::kScaleBytes / kChunk;
      for (int64_t i = 0; i < num_codes; ++i) padded_codes[i] = codes[i];
      step(self.full_chunks, padded, Format::LoadScales(padded_codes, self.ChunkScale(self.full_chunks)));
    }
  }

  const MultiplyArgs& args;
  int64_t full_chunks;
  int64_t tail;  // Bytes of the last, shorter chunk.
};

// One row against kTokens tokens: weights go from memory to registers, once.
template <class Format, int kTokens>
static void FewTokens(const MultiplyArgs& args) {
  const RowReader<Format> reader(args);
  const X* const x = static_cast<const X*>(args.x);
  const int64_t x_stride = args.x_stride;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    Vec acc[kTokens];
    for (int t = 0; t < kTokens; ++t) acc[t] = Zero();
    RowReader<Format>::ForEachChunk(
        reader, row,
        [&](int64_t chunk, const uint8_t* bytes,
            const typename Format::Scales& scales) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int part = 0; part < kParts; ++part) {
            WVec w[kVecs];
            Format::Decode(bytes, part, w);
            const X* const from = x + chunk * kChunk + part * kPartElements;
#pragma GCC unroll 8
            for (int t = 0; t < kTokens; ++t) {
              Vec sum = Zero();
#pragma GCC unroll 16
              for (int v = 0; v < kVecs; ++v) sum = Dot(sum, w[v], LoadX(from + t * x_stride + v * kLanes));
              acc[t] = Format::kScaled ? Fma(sum, Format::PartScale(scales, part), acc[t]) : Add(acc[t], sum);
            }
          }
        });
    for (int t = 0; t < kTokens; ++t) args.out[t * args.out_stride + row] = Reduce(acc[t]);
  }
}

// An unpacked chunk: kParts * kVecs weight vectors, then (scaled formats) kParts scale vectors.
constexpr int64_t kUnpackedWeightBytes = int64_t{kParts} * kVecs * static_cast<int64_t>(sizeof(WVec));
constexpr int64_t kUnpackedChunkBytes =
    kUnpackedWeightBytes + int64_t{kParts} * static_cast<int64_t>(sizeof(Vec));
static_assert(kUnpackedChunkBytes <= kScratchBytesPerChunk);

template <class Format>
static void Unpack(const MultiplyArgs& args, int64_t row, uint8_t* to) {
  const RowReader<Format> reader(args);
  RowReader<Format>::ForEachChunk(
      reader, row,
      [&](int64_t, const uint8_t* bytes, const typename Format::Scales& scales)
          __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int part = 0; part < kParts; ++part) {
              WVec w[kVecs];
              Format::Decode(bytes, part, w);
#pragma GCC unroll 16
              for (int v = 0; v < kVecs; ++v)
                StoreW(to + (part * kVecs + v) * static_cast<int64_t>(sizeof(WVec)), w[v]);
              if (Format::kScaled) {
                StoreVec(to + kUnpackedWeightBytes + part * static_cast<int64_t>(sizeof(Vec)),
                         Format::PartScale(scales, part));
              }
            }
            to += kUnpackedChunkBytes;
          });
}

// kRows unpacked rows against kTokens tokens.
template <class Format, int kRows, int kTokens>
static void Tile(const uint8_t* unpacked, int64_t unpacked_stride, int64_t num_chunks, const X* x,
                 int64_t x_stride, float* out, int64_t out_stride) {
  Vec acc[kRows][kTokens];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) acc[r][t] = Zero();
  }
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    for (int part = 0; part < kParts; ++part) {
      Vec sum[kRows][kTokens];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) sum[r][t] = Zero();
      }
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        WVec w[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          w[r] =
              LoadW(unpacked + r * unpacked_stride + (part * kVecs + v) * static_cast<int64_t>(sizeof(WVec)));
        }
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          const auto xv = LoadX(x + t * x_stride + part * kPartElements + v * kLanes);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) sum[r][t] = Dot(sum[r][t], w[r], xv);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        if (Format::kScaled) {
          const Vec scale = LoadVec(unpacked + r * unpacked_stride + kUnpackedWeightBytes +
                                    part * static_cast<int64_t>(sizeof(Vec)));
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) acc[r][t] = Fma(sum[r][t], scale, acc[r][t]);
        } else {
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) acc[r][t] = Add(acc[r][t], sum[r][t]);
        }
      }
    }
    unpacked += kUnpackedChunkBytes;
    x += kChunk;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) out[t * out_stride + r] = Reduce(acc[r][t]);
  }
}

// All rows of an unpacked block against kTokens tokens.
template <class Format, int kTokens>
static void BlockTokens(const uint8_t* unpacked, int64_t stride, int64_t num_rows, int64_t num_chunks,
                        const X* x, int64_t x_stride, float* out, int64_t out_stride) {
  int64_t row = 0;
  for (; row + kTileRows <= num_rows; row += kTileRows) {
    Tile<Format, kTileRows, kTokens>(unpacked + row * stride, stride, num_chunks, x, x_stride, out + row,
                                     out_stride);
  }
  for (; row < num_rows; ++row) {
    Tile<Format, 1, kTokens>(unpacked + row * stride, stride, num_chunks, x, x_stride, out + row, out_stride);
  }
}

// Blocks of rows are unpacked once and meet all tokens while they are in the cache.
template <class Format>
static void ManyTokens(const MultiplyArgs& args) {
  const int64_t num_chunks = (args.cols + kChunk - 1) / kChunk;
  const int64_t stride = num_chunks * kUnpackedChunkBytes;
  uint8_t* const unpacked = static_cast<uint8_t*>(args.scratch);
  const X* const x = static_cast<const X*>(args.x);
  // A large block reads many tokens' activations less often; with few tokens they stay near and a small block does.
  const int64_t block = args.num_tokens <= 16 ? 2 * kTileRows : kBlockRows;
  for (int64_t first = 0; first < args.num_rows; first += block) {
    const int64_t num_rows = args.num_rows - first < block ? args.num_rows - first : block;
    for (int64_t r = 0; r < num_rows; ++r) Unpack<Format>(args, first + r, unpacked + r * stride);
    int64_t token = 0;
    const auto run = [&](auto tokens_of, int64_t count) {
      tokens_of(unpacked, stride, num_rows, num_chunks, x + token * args.x_stride, args.x_stride,
                args.out + token * args.out_stride + first, args.out_stride);
      token += count;
    };
    while (args.num_tokens - token >= kTileTokens && args.num_tokens - token != 4)
      run(BlockTokens<Format, kTileTokens>, kTileTokens);
    while (args.num_tokens - token >= 2) run(BlockTokens<Format, 2>, 2);
    if (args.num_tokens - token >= 1) run(BlockTokens<Format, 1>, 1);
  }
}

template <class Format>
static void MultiplyFormat(const MultiplyArgs& args) {
  if (args.num_tokens > kMaxFewTokens) return ManyTokens<Format>(args);
  switch (args.num_tokens) {
    case 0:
      return;
    case 1:
      return FewTokens<Format, 1>(args);
    default:
      return FewTokens<Format, 2>(args);
  }
}
