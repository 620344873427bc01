// What this processor has, as far as the system keeps its registers for programs.
#pragma once

namespace translate_trt {

bool has_avx512_vnni();

bool has_amx_int8();

// A process has to ask the system for AMX's tiles before it uses them. True: it may.
bool request_tiles();

}  // namespace translate_trt
