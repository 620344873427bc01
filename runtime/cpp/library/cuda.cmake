# Finds the CUDA runtime, for TRANSLATE_TRT_CUDA and TRANSLATE_TRT_TENSORRT. No GPU is needed.
#
# Sets CUDART_INCLUDE_DIR, CUDART_LIBRARY, cudart_libraries (CUDART_LIBRARY and what it needs), cuda_missing (a list of
# what was not found), and cudart_soname (the name by which a linked program loads the library; empty if it is static).
# Where NVCC works (NVCC_WORKS), makes the target copy_kernel, a static library.
include(CheckCXXSourceCompiles)

set(CUDAToolkit_ROOT "" CACHE PATH "Directory of the CUDA toolkit; not needed for /usr/local/cuda")
set(cuda_hints "${CUDAToolkit_ROOT}" "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_PATH}" "$ENV{CUDA_HOME}")
set(cuda_target "targets/${CMAKE_SYSTEM_PROCESSOR}-linux")
set(library_folders lib64 lib "lib/${CMAKE_LIBRARY_ARCHITECTURE}" "${cuda_target}/lib")
find_path(CUDART_INCLUDE_DIR cuda_runtime_api.h HINTS ${cuda_hints} PATHS /usr/local/cuda
  PATH_SUFFIXES include "${cuda_target}/include")
# Packages of Python's index have no libcudart.so.
find_library(CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR HINTS ${cuda_hints}
  PATHS /usr/local/cuda PATH_SUFFIXES ${library_folders})

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

# The only code for the GPU. Without it, copies are made one by one.
find_program(NVCC nvcc HINTS ${cuda_hints} /usr/local/cuda PATH_SUFFIXES bin)
set(kernel_source "${CMAKE_CURRENT_LIST_DIR}/../src/cuda/copy_kernel.cu")
set(kernel_library "${CMAKE_CURRENT_BINARY_DIR}/libcopy_kernel.a")
set(kernel_command "${NVCC}" -lib -std=c++17 -O3 -arch=all-major -Xcompiler=-fPIC,-fvisibility=hidden
  "-I${CMAKE_CURRENT_LIST_DIR}/../src" "${kernel_source}" -o "${kernel_library}")
if(NVCC AND NOT cuda_missing AND NOT DEFINED NVCC_WORKS)
  # nvcc refuses some compilers, and may belong to another toolkit than the library.
  execute_process(COMMAND ${kernel_command} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT failed)
    set(cudart_options ${cudart_libraries})
    list(TRANSFORM cudart_options REPLACE "^(Threads::Threads|rt|dl)$" "-l\\1")
    list(TRANSFORM cudart_options REPLACE "-lThreads::Threads" "-lpthread")
    execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -shared -Wl,--whole-archive "${kernel_library}"
      -Wl,--no-whole-archive -Wl,--no-undefined ${cudart_options} -o "${CMAKE_CURRENT_BINARY_DIR}/nvcc_check.so"
      RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  endif()
  if(failed)
    message(STATUS "${NVCC} does not work; copies on the device are made one by one: ${output}")
    set(NVCC_WORKS OFF CACHE INTERNAL "Whether nvcc builds the copy kernel")
  else()
    set(NVCC_WORKS ON CACHE INTERNAL "Whether nvcc builds the copy kernel")
  endif()
endif()
if(NVCC_WORKS AND NOT cuda_missing)
  add_custom_command(OUTPUT "${kernel_library}" COMMAND ${kernel_command}
    DEPENDS "${kernel_source}" "${CMAKE_CURRENT_LIST_DIR}/../src/cuda/copy_kernel.h" VERBATIM)
  add_custom_target(copy_kernel_library DEPENDS "${kernel_library}")
  add_library(copy_kernel STATIC IMPORTED GLOBAL)
  set_target_properties(copy_kernel PROPERTIES
    IMPORTED_LOCATION "${kernel_library}"
    INTERFACE_COMPILE_DEFINITIONS TRANSLATE_TRT_COPY_KERNEL)
  add_dependencies(copy_kernel copy_kernel_library)
endif()
