#include "processor.h"

#if defined(TRANSLATE_TRT_AVX2) || defined(TRANSLATE_TRT_AVX512)
#include <cpuid.h>
#endif
#if defined(TRANSLATE_TRT_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace translate_trt {

#ifdef TRANSLATE_TRT_AVX2

bool has_avx2() {
  __builtin_cpu_init();
  unsigned a, b, c, d;
  // Older compilers do not know the name of F16C.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx_vnni() {
  // Reads CPUID directly, as for AMX below. Leaf 7 has the number of its last subleaf in EAX.
  constexpr unsigned kAvxVnni = 1u << 4;  // a bit of EAX of subleaf 1
  unsigned a, b, c, d;
  return has_avx2() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && a >= 1 &&
         __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnni) != 0;
}

#endif

#ifdef TRANSLATE_TRT_AVX512

bool has_avx512_vnni() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

#endif

#ifdef TRANSLATE_TRT_EMULATED_TILES

bool has_amx_int8() { return true; }

bool request_tiles() { return true; }

#elif defined(TRANSLATE_TRT_AMX)

namespace {

// Register state that the operating system saves (XCR0), which exists on CPUs with AVX-512.
unsigned kept_registers() {
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

// Reads CPUID directly: __builtin_cpu_supports does not know AMX in every compiler.
bool has_amx_int8() {
  constexpr unsigned kTiles = 1u << 24, kInt8 = 1u << 25;              // bits of EDX
  constexpr unsigned kConfiguration = 1u << 17, kTileData = 1u << 18;  // bits of XCR0
  unsigned a, b, c, d;
  return has_avx512_vnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) != 0 &&
         (d & kInt8) != 0 && (kept_registers() & kConfiguration) != 0 &&
         (kept_registers() & kTileData) != 0;
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
