#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy; files that do not belong to a build are skipped.
#
#   bash scripts/clang_tidy.sh [FILE ...]     default: every source file of runtime/cpp
#
# It needs what scripts/build_library.sh needs, and clang-tidy: pip install clang-tidy.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
built="A build for clang-tidy"
source scripts/native.sh

command -v clang-tidy >/dev/null || missing "there is no clang-tidy" "Install it: pip install clang-tidy"
find_tools
find_headers
mkdir -p build
folder=build/clang-tidy
# shellcheck disable=SC2154  # find_headers sets it
cmake -S runtime/cpp -B "$folder" -D CMAKE_EXPORT_COMPILE_COMMANDS=ON -D TRANSLATE_TRT_TESTS=ON \
    -D "ONNXRUNTIME_INCLUDE_DIR=$headers" >"$folder.log" 2>&1 || { cat "$folder.log" >&2; exit 1; }
files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(git ls-files 'runtime/cpp/*.cc')
for file in "${files[@]}"; do
    # Compiled for each instruction set, from a file that includes it.
    [[ $file != *_simd.cc ]] || file=$folder/kernels/$(basename "${file%_simd.cc}")_avx2.cc
    grep -qF "$root/$file" "$folder/compile_commands.json" || { say "$file: not built here"; continue; }
    printf '%s\0' "$file"
done | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy -p "$folder" --quiet
