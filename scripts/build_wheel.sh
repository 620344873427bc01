#!/usr/bin/env bash
# Builds a wheel that contains libtranslate_trt and the compiled kernels, in dist/ (or OUT):
#
#   bash scripts/build_wheel.sh [OUT]                      # for systems like this one
#   PLATFORM=manylinux_2_28_x86_64 bash scripts/build_wheel.sh [OUT]
#   PLATFORM=manylinux_2_28_aarch64 bash scripts/build_wheel.sh [OUT]
#
# With PLATFORM, the compiler is Zig's, from the Python package index, which targets any glibc version and
# processor. The wheel is built from a copy of the files in git, so that it never contains libraries built
# for this machine.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

out=$(realpath -m "${1:-$root/dist}")
platform=${PLATFORM:-}
[[ -z $platform || $platform =~ ^manylinux_2_([0-9]+)_(x86_64|aarch64)$ ]] || {
    echo "PLATFORM is $platform; write manylinux_2_28_x86_64 or manylinux_2_28_aarch64." >&2
    exit 2
}
glibc=${BASH_REMATCH[1]:-} processor=${BASH_REMATCH[2]:-}
tools=$(mktemp -d) tree=$(mktemp -d)
trap 'rm -rf "$tools" "$tree"' EXIT
"$python" -m venv "$tools"
export PATH="$tools/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1
pip install --quiet cmake ninja
git ls-files -co --exclude-standard | tar --create --files-from - --ignore-failed-read | tar -x -C "$tree"
mkdir -p .cache
ln -s "$root/.cache" "$tree/.cache"  # fetched headers
options=(-D CMAKE_SHARED_LINKER_FLAGS=-s)
if [ -n "$platform" ]; then
    target=$processor-linux-gnu.2.$glibc
    say "a compiler for $target"
    pip install --quiet --constraint constraints.txt --target "$tools/zig" ziglang
    for tool in cc c++ ar ranlib; do
        flags=
        [[ $tool != c* ]] || flags="-target $target"
        printf '#!/bin/sh\nexec "%s" %s %s "$@"\n' "$tools/zig/ziglang/zig" "$tool" "$flags" >"$tools/zig/$tool"
        chmod +x "$tools/zig/$tool"
    done
    export CC=$tools/zig/cc CXX=$tools/zig/c++ TRANSLATE_TRT_PLATFORM=$platform
    options+=(-D CMAKE_SYSTEM_NAME=Linux -D "CMAKE_SYSTEM_PROCESSOR=$processor"
        -D "CMAKE_AR=$tools/zig/ar" -D "CMAKE_RANLIB=$tools/zig/ranlib")
fi
TRANSLATE_TRT_VENV=none bash "$tree/scripts/build_library.sh" "${options[@]}"
rm -rf "$tree/build"
# The libraries are built already; pip would build them for this machine.
TRANSLATE_TRT_LIBRARY=none pip wheel --quiet --no-deps --wheel-dir "$out" "$tree"
ls "$out"/translate_trt-*.whl
