// The tile registers of AMX, included by kernels_amx.cc inside its namespace.
//
// No include guard: one inclusion per unit.

// Registers 0 to 3 are sums, 4 and 5 weights, 6 and 7 activations. Registers 0, 1 and 6 belong to the first
// of two tiles of tokens.
struct Tiles {
  // How many tokens each tile of tokens has.
  Tiles(int64_t first_tokens, int64_t second_tokens) {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      const bool weights = i == 4 || i == 5;
      const bool first = i < 2 || i == 6;
      config.rows[i] = TileConfig::kRows;
      config.row_bytes[i] =
          static_cast<uint16_t>(weights ? TileConfig::kRowBytes : 4 * (first ? first_tokens : second_tokens));
    }
    config.Load();
  }
  ~Tiles() { TileConfig::Release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  __attribute__((always_inline)) inline void Clear() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  __attribute__((always_inline)) inline void Read(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  __attribute__((always_inline)) inline void Write(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // Sums += weights times activations: 16 rows, 16 pairs of columns, the tokens of the tile.
  template <int kSums, int kWeights, int kTokens>
  __attribute__((always_inline)) inline void Add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kWeights), "i"(kTokens));
  }
};
