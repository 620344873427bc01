#!/usr/bin/env bash
# Builds the compiled kernels (docs/kernels.md) into runtime/kernels/. A file that is up to date is kept.
#
#   bash scripts/build_kernels.sh
#
# Requirements: CMake, a C++17 compiler, and ONNX Runtime's headers in $ONNXRUNTIME_INCLUDE_DIR or
# /usr/include/onnxruntime; on Debian, the headers are fetched into .cache/ without root. The exit code is 3
# if a requirement is missing, 1 if the build fails. Environment:
#   CXX       compiler
# For a library to test, which stays in build/kernels-test:
#   SANITIZE  address,undefined or thread
#   PLAIN     ON: the plain C++ kernels, which are the reference, for any processor
#   TILES     emulated: AMX in software, for CPUs without AMX; none: without AMX, for CPUs that have it
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
built="The compiled kernels"
source scripts/native.sh

find_tools
find_headers
lock_builds
name=libtranslate_trt_kernels.so
if [ -n "${SANITIZE:-}${TILES:-}${PLAIN:-}" ]; then
    build runtime/cpp build/kernels-test -D TRANSLATE_TRT_BUILD_LIBRARY=OFF \
        -D "TRANSLATE_TRT_PLAIN=${PLAIN:-OFF}" \
        -D "TRANSLATE_TRT_SANITIZE=${SANITIZE:-}" \
        -D "TRANSLATE_TRT_TILES=${TILES:-}"
    say "$root/build/kernels-test/$name: use it with TRANSLATE_TRT_KERNELS"
    exit
fi
build runtime/cpp build/native -D TRANSLATE_TRT_BUILD_KERNELS=ON -D TRANSLATE_TRT_BUILD_LIBRARY=OFF
place "$name" kernels
