#!/usr/bin/env bash
# Builds libtranslate_trt (docs/embed-cpp.md), which Python translates with, too, and the compiled kernels
# that it uses, into runtime/native/ and runtime/kernels/; what is up to date stays.
#
#   bash scripts/build_library.sh
#   PREFIX=/usr/local bash scripts/build_library.sh   # and installs it there
#
# It needs what scripts/build_kernels.sh needs. CMake fetches SentencePiece, which is linked statically,
# and, where the system has none, nlohmann's JSON. Arguments go to cmake. The exit code is 3 if something
# is missing, 1 if the build fails. Environment:
#   CXX       the compiler
#   PREFIX    where to install
#   TRANSLATE_TRT_KERNELS  none: without the compiled kernels
# and for libraries to test with, in build/native-address or build/native-thread only:
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
build runtime/cpp build/native "${options[@]}" "$@"
if [ -n "${SANITIZE:-}" ]; then
    folder=build/native-${SANITIZE%%,*}
    # SentencePiece as it is: it takes longer than all else.
    build runtime/cpp "$folder" "${options[@]}" -D "TRANSLATE_TRT_SANITIZE=$SANITIZE" \
        -D "SENTENCEPIECE_LIBRARY=$root/build/native/library/sentencepiece/src/libsentencepiece.a" \
        -D "SENTENCEPIECE_INCLUDE_DIR=$root/build/native/_deps/sentencepiece-src/sentencepiece/src" "$@"
    say "$root/$folder/$name"
    exit
fi
[ ! -e build/native/libtranslate_trt_kernels.so ] || place libtranslate_trt_kernels.so kernels
place "$name" native
if [ -n "${PREFIX:-}" ]; then
    cmake --install build/native --prefix "$PREFIX" >build/native-install.log ||
        { cat build/native-install.log >&2 && exit 1; }
    say "installed below $PREFIX"
fi
