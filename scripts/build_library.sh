#!/usr/bin/env bash
# Builds libtranslate_trt (docs/embed-cpp.md), which is also Python's runtime, into runtime/native/, and the
# compiled kernels into runtime/kernels/. Files that are up to date are kept.
#
#   bash scripts/build_library.sh
#   PREFIX=/usr/local bash scripts/build_library.sh   # installs it as well
#
# Requirements are those of scripts/build_kernels.sh. CMake fetches SentencePiece, which is linked
# statically, and nlohmann's JSON unless the system has it, with pip. Arguments are passed to cmake. The exit code is 3
# if a requirement is missing, 1 if the build fails. Environment:
#   CXX       compiler
#   PREFIX    installation prefix
#   TRANSLATE_TRT_KERNELS  none: build no compiled kernels
# For a library with sanitizers, which stays in build/native-address or build/native-thread:
#   SANITIZE  address,undefined or thread
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
built="The C++ library"
source scripts/native.sh

find_tools
find_headers
lock_builds
name=libtranslate_trt.so
options=(-D TRANSLATE_TRT_BUILD_LIBRARY=ON)
if [ "${TRANSLATE_TRT_KERNELS:-}" = none ]; then
    options+=(-D TRANSLATE_TRT_BUILD_KERNELS=OFF)
else
    options+=(-D TRANSLATE_TRT_BUILD_KERNELS=ON)
fi
if [ -n "${SANITIZE:-}" ]; then
    folder=build/native-${SANITIZE%%,*}
    # SentencePiece is reused without sanitizers: it takes longest to build.
    build runtime/cpp build/native "${options[@]}"
    build runtime/cpp "$folder" "${options[@]}" -D "TRANSLATE_TRT_SANITIZE=$SANITIZE" \
        -D "SENTENCEPIECE_LIBRARY=$root/build/native/library/sentencepiece/src/libsentencepiece.a" \
        -D "SENTENCEPIECE_INCLUDE_DIR=$root/build/native/third-party/sentencepiece/sentencepiece-0.2.1/sentencepiece/src" "$@"
    say "$root/$folder/$name"
    exit
fi
build runtime/cpp build/native "${options[@]}" "$@"
[ ! -e build/native/libtranslate_trt_kernels.so ] || place libtranslate_trt_kernels.so kernels
place "$name" native
if [ -n "${PREFIX:-}" ]; then
    cmake --install build/native --prefix "$PREFIX" >build/native-install.log ||
        { cat build/native-install.log >&2 && exit 1; }
    say "installed below $PREFIX"
fi
