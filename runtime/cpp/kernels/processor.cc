#include "processor.h"

#if defined(TRANSLATE_TRT_AVX2) || defined(TRANSLATE_TRT_AVX512)
#include <cpuid.h>
#endif
#if defined(TRANSLATE_TRT_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(TRANSLATE_TRT_NEON) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(TRANSLATE_TRT_NEON) && defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#endif

namespace translate_trt {

#ifdef TRANSLATE_TRT_NEON

#ifdef __APPLE__

namespace {

bool has(const char* feature) {
  int found = 0;
  std::size_t size = sizeof found;
  return sysctlbyname(feature, &found, &size, nullptr, 0) == 0 && found != 0;
}

}  // namespace

#endif

bool has_dot_products() {
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1UL << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProducts) != 0;
#elif defined(__APPLE__)
  return has("hw.optional.arm.FEAT_DotProd");
#else
  return false;
#endif
}

bool has_i8mm() {
#if defined(__linux__)
  constexpr unsigned long kI8mm = 1UL << 13;  // HWCAP2_I8MM
  return has_dot_products() && (getauxval(AT_HWCAP2) & kI8mm) != 0;
#elif defined(__APPLE__)
  return has_dot_products() && has("hw.optional.arm.FEAT_I8MM");
#else
  return false;
#endif
}

#endif

#if defined(TRANSLATE_TRT_AVX2) || defined(TRANSLATE_TRT_AVX512)

namespace {

// CPUID is read here: __builtin_cpu_supports knows AMX in few compilers, and of Zig 0.17 it knows
// nothing at all.
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

// Zeros if the processor has no such leaf.
Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers found;
  if (__get_cpuid_count(leaf, subleaf, &found.a, &found.b, &found.c, &found.d) == 0) return {};
  return found;
}

constexpr bool has_all(unsigned found, unsigned bits) { return (found & bits) == bits; }

constexpr unsigned bit(unsigned number) { return 1u << number; }

// Whether the operating system saves all of some register state (bits of XCR0).
bool keeps(unsigned state) {
  if (!has_all(cpuid(1).c, bit(27))) return false;  // OSXSAVE
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has_all(low, state);
}

constexpr unsigned kVectors = bit(1) | bit(2);  // of 128 and 256 bits

}  // namespace

#endif

#ifdef TRANSLATE_TRT_AVX2

bool has_avx2() {
  return has_all(cpuid(1).c, bit(12) | bit(28) | bit(29)) &&  // FMA, AVX, F16C
         has_all(cpuid(7).b, bit(5)) && keeps(kVectors);
}

bool has_avx_vnni() {
  return has_avx2() && cpuid(7).a >= 1 && has_all(cpuid(7, 1).a, bit(4));  // EAX: last subleaf
}

#endif

#ifdef TRANSLATE_TRT_AVX512

bool has_avx512_vnni() {
  return has_all(cpuid(7).b, bit(16) | bit(17) | bit(30) | bit(31)) &&  // F, DQ, BW, VL
         has_all(cpuid(7).c, bit(11)) &&                                // VNNI
         keeps(kVectors | bit(5) | bit(6) | bit(7));                    // masks and 512 bits
}

#endif

#ifdef TRANSLATE_TRT_EMULATED_TILES

bool has_amx_int8() { return true; }

bool request_tiles() { return true; }

#elif defined(TRANSLATE_TRT_AMX)

bool has_amx_int8() {
  return has_avx512_vnni() && has_all(cpuid(7).d, bit(24) | bit(25)) &&  // tiles, 8-bit GEMM
         keeps(bit(17) | bit(18));                                       // configuration, tiles
}

bool request_tiles() {
#if defined(__linux__)
  // Linux 5.16 and later; the headers of many systems do not define these names yet.
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#endif

}  // namespace translate_trt
