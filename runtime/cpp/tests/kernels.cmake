# Tests and benchmark of the compiled kernels.
add_executable(translate_trt_kernel_tests
  kernel_tests.cc test_workspace.cc test_kernel_rows.cc test_kernel_linear.cc
  test_kernel_attention.cc test_kernel_candidates.cc $<TARGET_OBJECTS:translate_trt_kernels>)
# Files define helpers with equal names.
set_target_properties(translate_trt_kernel_tests PROPERTIES UNITY_BUILD OFF)
# Only the headers that check.h includes.
target_include_directories(translate_trt_kernel_tests PRIVATE
  $<TARGET_PROPERTY:objects,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(translate_trt_kernel_tests PRIVATE
  $<TARGET_PROPERTY:translate_trt_kernels,COMPILE_DEFINITIONS>)
target_compile_options(translate_trt_kernel_tests PRIVATE ${compile_options})
target_link_libraries(translate_trt_kernel_tests PRIVATE Threads::Threads)

add_executable(translate_trt_kernel_benchmark
  ../benchmarks/kernels.cc $<TARGET_OBJECTS:translate_trt_kernels>)
target_compile_definitions(translate_trt_kernel_benchmark PRIVATE
  $<TARGET_PROPERTY:translate_trt_kernels,COMPILE_DEFINITIONS>)
target_compile_options(translate_trt_kernel_benchmark PRIVATE ${compile_options} -O2)
target_link_libraries(translate_trt_kernel_benchmark PRIVATE Threads::Threads)
