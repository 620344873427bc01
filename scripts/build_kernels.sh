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
#   TILES     of AMX: emulated, on processors that have none; or none, on those that have them
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

readonly package=libonnxruntime-dev suite=trixie  # 1.21, the oldest that the runtime works with
readonly header=onnxruntime_cxx_api.h
fetched=$root/.cache/onnxruntime

missing() { # what, what to do
    printf 'The compiled kernels cannot be built: %s. %s\n' "$1" "$2" >&2
    exit 3
}

find_tools() {
    command -v cmake >/dev/null ||
        missing "there is no cmake" "Install it, for example: apt-get install cmake ninja-build"
    command -v ninja >/dev/null || command -v make >/dev/null ||
        missing "there is neither ninja nor make" "Install one: apt-get install ninja-build"
    command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
        command -v clang++ >/dev/null ||
        missing "there is no C++ compiler" "Install one, for example: apt-get install g++"
}

find_headers() { # sets headers
    local place
    if [ -n "${ONNXRUNTIME_INCLUDE_DIR:-}" ]; then
        headers=$ONNXRUNTIME_INCLUDE_DIR
        [ -e "$headers/$header" ] ||
            missing "ONNXRUNTIME_INCLUDE_DIR is $headers, which has no $header" \
                "Name the folder that has it"
        return
    fi
    for place in /usr/include/onnxruntime "$fetched/usr/include/onnxruntime"; do
        headers=$place
        [ ! -e "$headers/$header" ] || return 0
    done
    fetch_headers || missing "there are no headers of ONNX Runtime" \
        "Install $package, or unpack a release of ONNX Runtime and set ONNXRUNTIME_INCLUDE_DIR"
}

# Debian's package of its suite `trixie`, whichever suite this system is of. Nothing of the system
# is changed: apt gets lists and caches of its own, and its mirrors and keys from the system.
fetch_headers() {
    local sources=/etc/apt/sources.list.d/debian.sources place apt
    [ -r "$sources" ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    say "fetching the headers of ONNX Runtime ($package of Debian's $suite)"
    mkdir -p "$root/.cache"
    place=$(mktemp -d "$root/.cache/onnxruntime.XXXXXX")
    # shellcheck disable=SC2064  # the place of now
    trap "rm -rf '$place'" EXIT
    mkdir -p "$place"/{lists,cache}/partial
    # The first stanza is the main archive, the others security and the like.
    awk -v suite="$suite" '/^Suites:/ { $0 = "Suites: " suite } /^$/ { exit } { print }' \
        "$sources" >"$place/apt.sources"
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$place/apt.sources" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$place/lists" -o "Dir::Cache=$place/cache"
        -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::Retries=2
        -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
    (cd "$place" && "${apt[@]}" update && "${apt[@]}" download "$package") >&2 &&
        dpkg -x "$place/$package"_*.deb "$place/unpacked" &&
        rm -rf "$fetched" && mv "$place/unpacked" "$fetched" || return 1
    headers=$fetched/usr/include/onnxruntime
}

build() { # folder, more options of cmake
    local folder=$1 generator=()
    shift
    if [ ! -e "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    cmake -S runtime/cpp -B "$folder" "${generator[@]}" -D "ONNXRUNTIME_INCLUDE_DIR=$headers" \
        "$@" >"$folder.log" 2>&1 &&
        cmake --build "$folder" --parallel >>"$folder.log" 2>&1 || {
        cat "$folder.log" >&2
        exit 1
    }
}

find_tools
find_headers
mkdir -p build
name=libtranslate_trt_kernels.so
if [ -n "${SANITIZE:-}${TILES:-}" ]; then
    build build/kernels-test -D "TRANSLATE_TRT_SANITIZE=${SANITIZE:-}" \
        -D "TRANSLATE_TRT_TILES=${TILES:-}"
    say "$root/build/kernels-test/$name: use it with TRANSLATE_TRT_KERNELS"
    exit
fi
build build/kernels
cmp -s "build/kernels/$name" "runtime/kernels/$name" || {
    # A process that has the old library loaded keeps it: its file is replaced, not written to.
    cp "build/kernels/$name" "runtime/kernels/.$name.$$"
    mv -f "runtime/kernels/.$name.$$" "runtime/kernels/$name"
    say "compiled kernels: runtime/kernels/$name"
}
