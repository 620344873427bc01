#!/usr/bin/env bash
# Builds the compiled kernels (docs/kernels.md) into runtime/kernels/; what is up to date stays.
#
#   bash scripts/build_kernels.sh
#
# It needs CMake, a C++17 compiler and ONNX Runtime's headers: those of $ONNXRUNTIME_INCLUDE_DIR, else
# of /usr/include/onnxruntime; on Debian it fetches them, as any user, into .cache/. The exit code is 3
# if one of these is missing, 1 if the build fails. Environment:
#   CXX       the compiler
# and for libraries to test with, in build/kernels-test only:
#   SANITIZE  address,undefined or thread
#   PLAIN     ON: the plain C++ kernels, the reference, for any processor
#   TILES     of AMX: emulated, on processors that have none; or none, on those that have them
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
