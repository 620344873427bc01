#include "bundle/sha256.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace translate_trt::runtime {

namespace {

using State = std::array<std::uint32_t, 8>;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::uint32_t kConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t rotated(std::uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

void compress(State& state, const unsigned char* data, std::size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] = std::uint32_t{data[4 * i]} << 24 | std::uint32_t{data[4 * i + 1]} << 16 |
             std::uint32_t{data[4 * i + 2]} << 8 | std::uint32_t{data[4 * i + 3]};
    }
    for (int i = 16; i < 64; ++i) {
      const auto a = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
      const auto b = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; ++i) {
      const auto s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
      const auto t1 = h + s1 + ((e & f) ^ (~e & g)) + kConstants[i] + w[i];
      const auto s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
      const auto t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const State added = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += added[i];
  }
}

#if defined(__x86_64__)

// SHA extensions of x86: ten times as fast, which shortens the loading of a large bundle.
__attribute__((target("sha,sse4.1"))) void compress_by_instructions(State& state,
                                                                    const unsigned char* data,
                                                                    std::size_t blocks) {
  const auto load = [](const void* from) __attribute__((target("sha,sse4.1"))) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  };
  const __m128i bytes = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions take the state as two registers: a b e f and c d g h.
  const __m128i cdab = _mm_shuffle_epi32(load(&state[0]), 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(load(&state[4]), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // the next 16 words of the message schedule
    for (int i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(load(data + 16 * i), bytes);
    for (int i = 0; i < 16; ++i) {
      const __m128i now = w[0];
      __m128i sum = _mm_add_epi32(now, load(&kConstants[4 * i]));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
      const __m128i seven_back = _mm_alignr_epi8(w[3], w[2], 4);
      const __m128i next =
          _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, w[1]), seven_back), w[3]);
      w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = next;
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&state[0]), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&state[4]), _mm_alignr_epi8(dchg, feba, 8));
}

bool has_instructions() {
  // Read from CPUID: __builtin_cpu_supports of Zig 0.17 knows nothing.
  unsigned a, b, c, d;
  constexpr unsigned kSse41 = 1u << 19;  // bit of ECX of leaf 1
  constexpr unsigned kSha = 1u << 29;    // bit of EBX of leaf 7
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kSse41) != 0 &&
         __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
}

#endif

void add_blocks(State& state, const unsigned char* data, std::size_t blocks,
                [[maybe_unused]] bool instructions) {
#if defined(__x86_64__)
  static const bool here = has_instructions();
  if (instructions && here) return compress_by_instructions(state, data, blocks);
#endif
  compress(state, data, blocks);
}

}  // namespace

Sha256::Sha256(bool instructions) : instructions_(instructions) {}

void Sha256::update(const unsigned char* data, std::size_t size) {
  size_ += size;
  if (filled_ > 0) {
    const std::size_t taken = std::min(size, kBlock - filled_);
    std::memcpy(rest_.data() + filled_, data, taken);
    filled_ += taken, data += taken, size -= taken;
    if (filled_ < kBlock) return;
    add_blocks(state_, rest_.data(), 1, instructions_);
    filled_ = 0;
  }
  add_blocks(state_, data, size / kBlock, instructions_);
  filled_ = size % kBlock;
  if (filled_ > 0) std::memcpy(rest_.data(), data + size - filled_, filled_);
}

std::string Sha256::digest() {
  const std::uint64_t bits = 8 * size_;
  unsigned char end[2 * kBlock] = {0x80};
  const std::size_t zeros = (kBlock + 55 - filled_) % kBlock;  // the length ends a block
  for (int i = 0; i < 8; ++i) end[1 + zeros + i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
  update(end, 1 + zeros + 8);
  std::string text;
  for (const std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

}  // namespace translate_trt::runtime
