// The instructions of AMX that a product in 8 bits takes. A thread has eight tiles; all of them are
// configured alike here, as 16 rows of 64 bytes.
//
// With TRANSLATE_TRT_EMULATED_TILES they are plain C++ on the same memory instead, so that what is
// written in them can be tested on any processor.
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
constexpr std::size_t kTileBytes = 64;  // of a row
constexpr std::size_t kTileSize = kTileRows * kTileBytes;

#ifndef TRANSLATE_TRT_EMULATED_TILES

// Not the compiler's intrinsics: those of GCC 12 are macros that want a tile's number written out,
// and do not say that a load reads memory.

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

// This thread's tiles; they are zero then.
inline void configure() {
  static constexpr Configuration configuration;
  asm volatile("ldtilecfg %0" : : "m"(configuration));
}

// Back to how a thread begins.
inline void release() { asm volatile("tilerelease" : : : "memory"); }

template <int Tile>
void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}

// Rows are `stride` bytes apart.
template <int Tile>
void load(const void* from, std::size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
void store(void* to, std::size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
}

// Adds to sum n of row m the products of byte k of row m of `Unsigned` with byte k % 4 of the n-th
// four of row k / 4 of `Signed`, for all 64 of k.
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

// A processor stops a program that uses tiles it has not configured.
inline std::uint8_t (&emulated(int tile)) [kTileRows][kTileBytes] {
  if (!emulated().configured) {
    std::abort();
  }
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
    std::uint32_t sums[kTileBytes / 4];  // they wrap around
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
