// Tiles of 8-bit and 16-bit GEMM with AVX-512 VNNI, and those of AMX.

#include <algorithm>
#include <cstring>

#include "gemm8.h"
#include "gemm8_amx.h"

namespace translate_trt::avx512 {
namespace {

// Multiply-add of four bytes of a row and of each of 16 columns. Inline assembly, because GCC 12
// spills the sums around the intrinsics, which halves the speed of the GEMM.
struct Bytes {
  static void multiply_add(__m512i& sums, __m512i unsigned_bytes, __m512i signed_bytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
  }
};
struct Words {
  static void multiply_add(__m512i& sums, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  }
};

// Computes one tile. The sums stay in registers only if the loops over them are unrolled and
// nothing else is inlined here. Every step prefetches `Lines` lines from `next` on.
template <class Numbers, int Rows, int Blocks, int Lines>
__attribute__((noinline)) void tile(const std::uint8_t* a, const std::int8_t* w, std::size_t inputs,
                                    const std::int8_t* next, __m512i (*out)[kPanel]) {
  const std::size_t block_size = inputs * kLanes;
  __m512i sums[Rows][Blocks];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Blocks; ++j) {
      sums[i][j] = _mm512_setzero_si512();
    }
  }
  for (std::size_t k = 0; k < inputs; k += 4, w += 64, next += Lines * 64) {
#pragma GCC unroll 8
    for (int i = 0; i < Lines; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(next) + i * 64, _MM_HINT_T1);
    }
    __m512i weights[Blocks];
#pragma GCC unroll 8
    for (int j = 0; j < Blocks; ++j) {
      weights[j] = _mm512_loadu_si512(w + j * block_size);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      std::int32_t four;
      std::memcpy(&four, a + i * inputs + k, sizeof four);
      const __m512i values = _mm512_set1_epi32(four);
#pragma GCC unroll 8
      for (int j = 0; j < Blocks; ++j) {
        Numbers::multiply_add(sums[i][j], values, weights[j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Blocks; ++j) {
      out[i][j] = sums[i][j];
    }
  }
}

template <class Numbers, int Rows>
void tiles(const std::uint8_t* a, const Matrix8& matrix, std::size_t block, std::size_t last,
           const Prefetch& prefetch, Sums& sums) {
  const auto inputs = matrix.inputs;
  const auto* w = matrix.weights + block * inputs * kLanes;
  if (last - block != kPanel) {
    for (auto j = block; j < last; ++j, w += inputs * kLanes) {
      tile<Numbers, Rows, 1, 0>(a, w, inputs, nullptr,
                                reinterpret_cast<__m512i(*)[kPanel]>(&sums[0][j - block]));
    }
    return;
  }
  switch (prefetch.lines * 4 / inputs) {
    case 0:
      return tile<Numbers, Rows, kPanel, 0>(a, w, inputs, nullptr, sums);
    case 1:
      return tile<Numbers, Rows, kPanel, 1>(a, w, inputs, prefetch.weights, sums);
    default:
      return tile<Numbers, Rows, kPanel, 2>(a, w, inputs, prefetch.weights, sums);
  }
}

template <class Numbers>
void vnni_tile(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
               std::size_t block, std::size_t last, const Background& background, Sums& sums) {
  const auto* a = x.values + row * matrix.inputs;
  with_height(height, [&](auto rows) {
    tiles<Numbers, rows.kRows>(a, matrix, block, last, background.prefetch, sums);
  });
}

#ifdef TRANSLATE_TRT_AMX

void amx_tile(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
              std::size_t block, std::size_t last, const Background& background, Sums& sums) {
  amx::multiply({
      x.values + amx::offset(row, 0, matrix.inputs),
      matrix.weights + block * matrix.inputs * kLanes,
      reinterpret_cast<std::int32_t*>(sums),
      height,
      matrix.inputs,
      last - block,
      kPanel * kLanes,
      &background,
  });
}

// Fills an array with pseudo-random numbers.
template <class T, std::size_t Count>
void fill(T (&values)[Count]) {
  std::uint32_t state = 1;
  for (auto& value : values) {
    state = state * 1664525 + 1013904223;  // as in "Numerical Recipes"
    value = static_cast<T>(state >> 24);
  }
}

// Computes the sums of every row with the first kPanel blocks.
template <std::size_t Size>
void compute(const GemmKernel& kernel, Rows8 x, const Matrix8& matrix, __m512i (*sums)[kPanel]) {
  std::uint8_t laid_out[Size] = {};
  for (std::size_t row = 0; row < x.count; ++row) {
    for (std::size_t k = 0; k < matrix.inputs; ++k) {
      laid_out[kernel.offset(row, k, matrix.inputs)] = x.values[row * matrix.inputs + k];
    }
  }
  x.values = laid_out;
  if (kernel.begin != nullptr) kernel.begin();
  for (std::size_t row = 0; row < x.count; row += kernel.rows) {
    const auto height = std::min(kernel.rows, x.count - row);
    Sums here;
    kernel.tile(x, matrix, row, height, 0, kPanel, {}, here);
    std::memcpy(sums[row], here, height * sizeof *here);
  }
  if (kernel.end != nullptr) kernel.end();
}

#endif

}  // namespace

// 6 x 4 registers of sums leave enough registers for weights and a row. Of three tiles or more, the
// first one of a panel would wait for memory while the others compute. One tile reads all the time,
// faster by the CPU's own prefetching: prefetch instructions take the same few fill buffers as
// loads (benchmarks/kernels.py, linear8_cold). Two tiles gain nothing, and lose a third of their
// time where weights are in the second-level cache.
const GemmKernel kGemm8 = {0, 13, 6, 66, nullptr, nullptr, vnni_tile<Bytes>, false};
const GemmKernel kGemm16 = {0, 13, 6, 66, nullptr, nullptr, vnni_tile<Words>, false};

#ifdef TRANSLATE_TRT_AMX

// Minimum rows for tiles. From 8 rows on, tiles take less time where weights are in the
// second-level cache. Where they come from memory, both instruction sets wait for them up to 12
// rows, and tiles are faster from 13 on (benchmarks/kernels.py, linear8 and linear8_cold, with
// tiles and without). One tile, of up to 32 rows, reads all the time and does not prefetch.
constexpr std::size_t kMinTileRows = 8;

const GemmKernel kGemm8Amx = {kMinTileRows, 33, 32, 128, amx::begin, amx::end, amx_tile, true};

bool same_sums(const GemmKernel& one, const GemmKernel& other) {
  constexpr std::size_t kRows = 32 + 5, kInputs = 2 * 64 + 36;
  std::uint8_t values[kRows * kInputs];
  std::int8_t weights[kPanel * kInputs * kLanes];
  fill(values);
  fill(weights);
  const Rows8 x{values, nullptr, nullptr, kRows, 0, nullptr};
  const Matrix8 matrix{weights, nullptr, nullptr, kInputs, kPanel * kLanes, kPanel};
  __m512i these[kRows][kPanel], those[kRows][kPanel];
  constexpr auto kSize = amx::readable_bytes(kRows, kInputs);
  compute<kSize>(one, x, matrix, these);
  compute<kSize>(other, x, matrix, those);
  return std::memcmp(these, those, sizeof these) == 0;
}

#endif

}  // namespace translate_trt::avx512
