# Finds the CUDA runtime, for TRANSLATE_TRT_CUDA and TRANSLATE_TRT_TENSORRT. No GPU is needed.
#
# Sets CUDART_INCLUDE_DIR, CUDART_LIBRARY, cudart_libraries (CUDART_LIBRARY and what it needs), cuda_missing (a list of
# what was not found), and cudart_soname (the name by which a linked program loads the library; empty if it is static).
include(CheckCXXSourceCompiles)

set(CUDAToolkit_ROOT "" CACHE PATH "Directory of the CUDA toolkit; not needed for /usr/local/cuda")
set(cuda_hints "${CUDAToolkit_ROOT}" "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_PATH}" "$ENV{CUDA_HOME}")
set(cuda_target "targets/${CMAKE_SYSTEM_PROCESSOR}-linux")
set(library_folders lib64 lib "lib/${CMAKE_LIBRARY_ARCHITECTURE}" "${cuda_target}/lib")
find_path(CUDART_INCLUDE_DIR cuda_runtime_api.h HINTS ${cuda_hints} PATHS /usr/local/cuda
  PATH_SUFFIXES include "${cuda_target}/include")
# Packages of Python's index have no libcudart.so.
find_library(CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 HINTS ${cuda_hints} PATHS /usr/local/cuda
  PATH_SUFFIXES ${library_folders})

set(cuda_missing "")
foreach(found CUDART_INCLUDE_DIR CUDART_LIBRARY)
  if(NOT ${found})
    list(APPEND cuda_missing ${found})
  endif()
endforeach()

set(cudart_libraries "${CUDART_LIBRARY}")
if(CUDART_LIBRARY MATCHES "\\.a$")
  list(APPEND cudart_libraries Threads::Threads ${CMAKE_DL_LIBS} rt)
endif()

# A toolkit of another processor, an incomplete one, or one before 11.4 does not count.
if(NOT cuda_missing)
  set(CMAKE_REQUIRED_INCLUDES "${CUDART_INCLUDE_DIR}")
  set(CMAKE_REQUIRED_LIBRARIES ${cudart_libraries})
  check_cxx_source_compiles("#include <cuda_runtime_api.h>
    int main() { cudaGraphExec_t graph; return cudaGraphInstantiateWithFlags(&graph, nullptr, 0); }" CUDART_LINKS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(NOT CUDART_LINKS)
    set(cuda_missing "a CUDA runtime of 11.4 or later for this processor (${CUDART_LIBRARY} does not link)")
  endif()
endif()

set(cudart_soname "")
if(NOT cuda_missing AND CMAKE_READELF)
  execute_process(COMMAND "${CMAKE_READELF}" -d "${CUDART_LIBRARY}" OUTPUT_VARIABLE dynamic ERROR_QUIET)
  if(dynamic MATCHES "soname: \\[([^]]+)\\]")
    set(cudart_soname "${CMAKE_MATCH_1}")
  endif()
endif()
