// Sixteen numbers in four registers of four numbers, as NEON and WebAssembly have them; see simd.h.
// neon.h and wasm.h define TRANSLATE_TRT_SIMD, Float4 and Int4 first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

constexpr std::size_t kLanes = 16;
constexpr int kParts = 4;  // registers of sixteen numbers

struct Floats {
  Float4 part[kParts];
};
struct Ints {
  Int4 part[kParts];
};

struct Lanes {
  std::size_t count;

  bool all() const { return count >= kLanes; }
};

constexpr std::size_t kSums = 4;

// Inputs per pass of the FP32 GEMM: 16 KiB of a panel stay in the first-level cache, from which
// each tile reads them.
constexpr std::size_t kGemmDepth = 64;

inline Lanes first_lanes(std::size_t count) { return {count}; }

// Makes a register for each part: make(0), ..., make(3). Inlined first of all, because GCC 12 keeps
// what closures capture in memory.
template <class Vector, class Make>
[[gnu::always_inline]] inline Vector in_parts(const Make& make) {
  return {{make(0), make(1), make(2), make(3)}};
}
template <class Make>
[[gnu::always_inline]] inline Floats floats(const Make& make) {
  return in_parts<Floats>(make);
}
template <class Make>
[[gnu::always_inline]] inline Ints ints(const Make& make) {
  return in_parts<Ints>(make);
}

// Functions of each instruction set.
Floats load(const float* from);
Floats load(const Half* from);
void store(float* to, Floats x);
void store(std::int32_t* to, Ints x);
void store(Half* to, Floats x);
Floats keep(Floats a, Lanes lanes, Floats others);
unsigned greater(Floats a, Floats b);

// Copies fewer than 16 numbers without a call, which would leave few registers to its callers.
template <class T>
inline void copy_some(T* to, const T* from, std::size_t count) {
  const auto copy_if = [&](auto size) {
    if ((count & size) == 0) return;
    std::memcpy(to, from, size * sizeof *to);
    to += size, from += size;
  };
  copy_if(std::integral_constant<std::size_t, 8>());
  copy_if(std::integral_constant<std::size_t, 4>());
  copy_if(std::integral_constant<std::size_t, 2>());
  copy_if(std::integral_constant<std::size_t, 1>());
}

template <class T>
inline Floats load(const T* from, Lanes lanes) {
  if (lanes.all()) return load(from);
  T copy[kLanes] = {};
  copy_some(copy, from, lanes.count);
  return load(copy);
}
inline Floats load(const float* from, Lanes lanes, Floats others) {
  return keep(load(from, lanes), lanes, others);
}

template <class T>
inline void store(T* to, Floats x, Lanes lanes) {
  if (lanes.all()) return store(to, x);
  T copy[kLanes];
  store(copy, x);
  copy_some(to, copy, lanes.count);
}

template <class T, class Register>
inline void store_selected(T* to, Register x, unsigned selected) {
  if (selected == (1U << kLanes) - 1) return store(to, x);
  T copy[kLanes];
  store(copy, x);
  for (; selected != 0; selected &= selected - 1) *to++ = copy[__builtin_ctz(selected)];
}

inline void transpose_fours(Floats (&x)[4]) {
  const Floats a = x[0], b = x[1], c = x[2], d = x[3];
  for (int i = 0; i < kParts; ++i) x[i] = {{a.part[i], b.part[i], c.part[i], d.part[i]}};
}

inline unsigned greater(Floats a, Floats b, Lanes lanes) {
  return greater(a, b) & (lanes.all() ? 0xFFFFU : (1U << lanes.count) - 1);
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
