// Contents of AMX's tile registers: how many rows, of how many bytes.
#pragma once

#include <cstdint>

namespace dsv4::backend::cpu {

struct alignas(64) TileConfig {
  static constexpr int kRows = 16;      // The most that a register has,
  static constexpr int kRowBytes = 64;  // and the most of each of them.

  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // Registers 0 to 7 are used; the others do not exist.
  uint8_t rows[16] = {};

  // Until Release() the registers of this thread are these, all zero.
  void Load() const { asm volatile("ldtilecfg %0" : : "m"(*this)); }
  // Tiles that are in use make every switch between threads dearer.
  static void Release() { asm volatile("tilerelease"); }
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace dsv4::backend::cpu
