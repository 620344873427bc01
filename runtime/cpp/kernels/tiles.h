// AMX instructions for 8-bit GEMM. A thread has eight tile registers, all configured as 16 rows of
// 64 bytes.
//
// TRANSLATE_TRT_EMULATED_TILES replaces the instructions by portable C++, so that code with tiles
// can be tested on any CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef TRANSLATE_TRT_EMULATED_TILES
#include <cstdlib>
#include <cstring>
#endif

namespace translate_trt::amx {

constexpr int kTiles = 8;
constexpr std::size_t kTileRows = 16;
constexpr std::size_t kTileBytes = 64;  // bytes of a row
constexpr std::size_t kTileSize = kTileRows * kTileBytes;

#ifndef TRANSLATE_TRT_EMULATED_TILES

// Inline assembly, because the intrinsics of GCC 12 are macros that take only literal tile numbers
// and do not declare that a load reads memory.

struct alignas(64) Configuration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  constexpr Configuration() {
    for (int tile = 0; tile < kTiles; ++tile) {
      row_bytes[tile] = kTileBytes;
      rows[tile] = kTileRows;
    }
  }
};

// Configures the tiles of the calling thread and sets them to zero.
inline void configure() {
  static constexpr Configuration configuration;
  asm volatile("ldtilecfg %0" : : "m"(configuration));
}

// Releases the tiles of the calling thread.
inline void release() { asm volatile("tilerelease" : : : "memory"); }

template <int Tile>
void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}

// Loads a tile whose rows are `stride` bytes apart.
template <int Tile>
void load(const void* from, std::size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
void store(void* to, std::size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
}

// Sums[m][n] += Unsigned[m][k] * Signed[k / 4][4 * n + k % 4] over all 64 values of k.
template <int Sums, int Unsigned, int Signed>
void multiply_add() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(Unsigned), "i"(Signed));
}

#else

struct Tiles {
  bool configured;
  std::uint8_t bytes[kTiles][kTileRows][kTileBytes];
};

inline Tiles& emulated() {
  thread_local Tiles tiles{};
  return tiles;
}

inline void configure() { emulated() = Tiles{true, {}}; }

inline void release() { emulated() = Tiles{}; }

// Aborts like a CPU, which raises a fault for tiles that are not configured.
inline auto& emulated(int tile) {
  if (!emulated().configured) std::abort();
  return emulated().bytes[tile];
}

template <int Tile>
void zero() {
  std::memset(emulated(Tile), 0, kTileSize);
}

template <int Tile>
void load(const void* from, std::size_t stride) {
  for (std::size_t row = 0; row < kTileRows; ++row) {
    const auto* begin = static_cast<const std::uint8_t*>(from) + row * stride;
    std::memcpy(emulated(Tile)[row], begin, kTileBytes);
  }
}

template <int Tile>
void store(void* to, std::size_t stride) {
  for (std::size_t row = 0; row < kTileRows; ++row) {
    std::memcpy(static_cast<std::uint8_t*>(to) + row * stride, emulated(Tile)[row], kTileBytes);
  }
}

template <int Sums, int Unsigned, int Signed>
void multiply_add() {
  for (std::size_t row = 0; row < kTileRows; ++row) {
    std::uint32_t sums[kTileBytes / 4];  // unsigned, to wrap around
    std::memcpy(sums, emulated(Sums)[row], kTileBytes);
    for (std::size_t k = 0; k < kTileBytes; ++k) {
      const int value = emulated(Unsigned)[row][k];
      for (std::size_t column = 0; column < kTileBytes / 4; ++column) {
        const auto weight = static_cast<std::int8_t>(emulated(Signed)[k / 4][column * 4 + k % 4]);
        sums[column] += static_cast<std::uint32_t>(value * weight);
      }
    }
    std::memcpy(emulated(Sums)[row], sums, kTileBytes);
  }
}

#endif

}  // namespace translate_trt::amx
