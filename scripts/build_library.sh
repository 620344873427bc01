#!/usr/bin/env bash
# Builds libtranslate_trt, the C and C++ library (docs/embed-cpp.md), and the compiled kernels it uses.
#
#   bash scripts/build_library.sh             # into build/library/
#   PREFIX=/usr/local bash scripts/build_library.sh   # and installs it there
#
# It needs what scripts/build_kernels.sh needs, SentencePiece and nlohmann's JSON: those of the system or
# of $CMAKE_PREFIX_PATH; on Debian it fetches them, as any user, into .cache/. Arguments go to cmake. The
# exit code is 3 if something is missing, 1 if the build fails. Environment:
#   CXX       the compiler
#   PREFIX    where to install
#   TRANSLATE_TRT_KERNELS  none: without the compiled kernels
# and for libraries to test with, in build/library-address or build/library-thread only:
#   SANITIZE  address,undefined or thread
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
built="The C++ library"
source scripts/native.sh

fetched=$root/.cache/native

find_packages() { # sets prefix, "" where the system has them or CMAKE_PREFIX_PATH says where they are
    prefix=
    if [ -n "${CMAKE_PREFIX_PATH:-}" ] || { [ -e /usr/include/sentencepiece_processor.h ] &&
        [ -e /usr/include/nlohmann/json.hpp ]; }; then
        return
    fi
    prefix=$fetched/usr
    [ -e "$prefix/include/sentencepiece_processor.h" ] ||
        fetch_debian native "" libsentencepiece-dev libsentencepiece0 nlohmann-json3-dev ||
        missing "there is no SentencePiece, or no nlohmann-json" \
            "Install libsentencepiece-dev and nlohmann-json3-dev, or set CMAKE_PREFIX_PATH"
}

find_tools
find_headers
find_packages
options=()
# What was fetched is installed along with the library: no system would find it elsewhere.
if [ -n "$prefix" ]; then
    options+=(-D "CMAKE_PREFIX_PATH=$prefix" -D TRANSLATE_TRT_INSTALL_SENTENCEPIECE=ON)
fi
mkdir -p build
if [ -n "${SANITIZE:-}" ]; then
    folder=build/library-${SANITIZE%%,*}
    build runtime/cpp/library "$folder" -D "TRANSLATE_TRT_SANITIZE=$SANITIZE" "${options[@]}" "$@"
    say "$root/$folder/libtranslate_trt.so"
    exit
fi
kernels=
if [ "${TRANSLATE_TRT_KERNELS:-}" != none ]; then
    bash scripts/build_kernels.sh
    kernels=$root/runtime/kernels/libtranslate_trt_kernels.so
fi
build runtime/cpp/library build/library -D "TRANSLATE_TRT_KERNELS=$kernels" "${options[@]}" "$@"
say "$root/build/library/libtranslate_trt.so"
if [ -n "${PREFIX:-}" ]; then
    cmake --install build/library --prefix "$PREFIX" >build/library-install.log ||
        { cat build/library-install.log >&2 && exit 1; }
    say "installed below $PREFIX"
fi
