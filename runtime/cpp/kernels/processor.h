// CPU features that the operating system also supports.
#pragma once

namespace translate_trt {

// The dot products of Armv8.2.
bool has_dot_products();

// The same, and FEAT_I8MM.
bool has_i8mm();

// AVX2, FMA and F16C.
bool has_avx2();

// The same, and AVX-VNNI.
bool has_avx_vnni();

bool has_avx512_vnni();

bool has_amx_int8();

// Requests permission from the operating system to use AMX tiles; returns whether it was granted.
bool request_tiles();

}  // namespace translate_trt
