#!/usr/bin/env bash
# Compiles the kernels for aarch64 and runs their tests on emulated processors: cortex-a76 and neoverse-n1, which
# have dot products, cortex-a72, which has none, and one with all extensions.
#
#   bash scripts/emulate_aarch64.sh [OUT]
#
# OUT (default: build/aarch64) keeps what was compiled, libtranslate_trt for aarch64 among it. The exit code is 3 if a
# requirement is missing, and otherwise that of the first tests that fail. Requirements:
#
#   apt-get install cmake ninja-build g++-aarch64-linux-gnu qemu-user
case ${1:-} in -*) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
out=${1:-build/aarch64}
built="The kernels for aarch64"
source scripts/native.sh

for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v "$tool" >/dev/null ||
        missing "there is no $tool" "Install it, for example: apt-get install g++-aarch64-linux-gnu qemu-user"
done
find_tools
find_headers
mkdir -p "$out"
build runtime/cpp "$out" -D CMAKE_SYSTEM_NAME=Linux -D CMAKE_SYSTEM_PROCESSOR=aarch64 \
    -D CMAKE_C_COMPILER=aarch64-linux-gnu-gcc -D CMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    -D TRANSLATE_TRT_BUILD_LIBRARY=ON -D TRANSLATE_TRT_BUILD_KERNELS=ON -D TRANSLATE_TRT_TESTS=ON
for processor in cortex-a72 cortex-a76 neoverse-n1 max; do
    printf '%s: ' "$processor"
    qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$processor" "$out/tests/translate_trt_kernel_tests"
done
