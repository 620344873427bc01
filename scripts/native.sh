# Sourced by the scripts that build C++, after environment.sh. Finds tools and headers; on Debian, missing
# headers are fetched into .cache/ without root. The caller sets `built`, the subject of error messages.
# shellcheck shell=bash disable=SC2154  # environment.sh and the caller set root and built

readonly header=onnxruntime_cxx_api.h
readonly headers_package=libonnxruntime-dev headers_suite=trixie  # 1.21, the oldest that works

missing() { # what, what to do
    printf '%s cannot be built: %s. %s\n' "$built" "$1" "$2" >&2
    exit 3
}

# Builds take turns: two CMake runs that configure one folder at the same time break each other.
lock_builds() {
    mkdir -p build
    if command -v flock >/dev/null; then
        exec 9>build/.lock
        flock 9
    fi
}

find_tools() {
    command -v cmake >/dev/null ||
        missing "there is no cmake" "Install it, for example: apt-get install cmake ninja-build"
    command -v ninja >/dev/null || command -v make >/dev/null ||
        missing "there is neither ninja nor make" "Install one: apt-get install ninja-build"
    python=${PYTHON:-$(command -v python || command -v python3 || true)}
    [ -z "$python" ] || more+=(-D "Python3_EXECUTABLE=$python")
    command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
        command -v clang++ >/dev/null || use_zig ||
        missing "there is no C++ compiler" "Install one: apt-get install g++, or pip install ziglang"
}

# Zig is Clang with all that it needs, in a wheel.
use_zig() {
    local name
    [ -n "$python" ] && "$python" -c 'import ziglang' 2>/dev/null || return
    mkdir -p build/zig
    for name in cc c++ ar ranlib; do
        printf '#!/bin/sh\nexec "%s" -m ziglang %s "$@"\n' "$python" "$name" >"build/zig/$name"
        chmod +x "build/zig/$name"
    done
    export CC=$root/build/zig/cc CXX=$root/build/zig/c++ AR=$root/build/zig/ar RANLIB=$root/build/zig/ranlib
    more+=(-D "CMAKE_AR=$AR" -D "CMAKE_RANLIB=$RANLIB")
}
more=() # options of cmake

# Downloads and unpacks Debian packages without changing the system: apt uses the system's mirrors and keys,
# but its own lists and caches.
fetch_debian() { # folder in .cache, suite or "" for the system's, packages
    local sources=/etc/apt/sources.list.d/debian.sources name=$1 suite=$2 place apt
    shift 2
    [ -r "$sources" ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    say "fetching $* of Debian"
    mkdir -p "$root/.cache"
    place=$(mktemp -d "$root/.cache/$name.XXXXXX")
    # shellcheck disable=SC2064  # expand now: place is local
    trap "rm -rf '$place'" EXIT
    mkdir -p "$place"/{lists,cache}/partial
    # The first stanza is the main archive, the others security and the like.
    awk -v suite="$suite" '/^Suites:/ && suite { $0 = "Suites: " suite } /^$/ { exit } { print }' \
        "$sources" >"$place/apt.sources"
    apt=(-o "Dir::Etc::SourceList=$place/apt.sources" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$place/lists" -o "Dir::Cache=$place/cache"
        -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::Retries=2
        -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
    (
        cd "$place" && apt-get -qq "${apt[@]}" update || exit 1
        apt-get -qq "${apt[@]}" download "$@" || exit 1
        for package in *.deb; do dpkg -x "$package" unpacked || exit 1; done
    ) >&2 && rm -rf "${root:?}/.cache/$name" && mv "$place/unpacked" "$root/.cache/$name" || return 1
    rm -rf "$place"
}

find_headers() { # of ONNX Runtime; sets headers
    local fetched=$root/.cache/onnxruntime place
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
    fetch_debian onnxruntime "$headers_suite" "$headers_package" ||
        missing "there are no headers of ONNX Runtime" \
            "Install $headers_package, or unpack a release of ONNX Runtime and set ONNXRUNTIME_INCLUDE_DIR"
    headers=$fetched/usr/include/onnxruntime
}

build() { # sources, folder, more options of cmake
    local sources=$1 folder=$2 cache=$2/CMakeCache.txt generator=Ninja program made jobs launcher
    shift 2
    launcher=${CMAKE_CXX_COMPILER_LAUNCHER:-$(command -v ccache || true)}
    # Paths relative to the root: clones and worktrees share what they have compiled.
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1
    # The program is named in every run: the folder may remember a ninja of pip's temporary environment.
    program=$(command -v ninja) || { generator='Unix Makefiles' && program=$(command -v make); }
    # CMake refuses a folder of another generator, or of a checkout that has been moved.
    [ ! -e "$cache" ] || {
        made=$(grep '^CMAKE_CACHEFILE_DIR:' "$cache") && [ "${made#*=}" -ef "$folder" ] &&
            grep -qx "CMAKE_GENERATOR:INTERNAL=$generator" "$cache"
    } || rm -rf "$folder"
    jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null) || jobs=  # make would start all at once
    cmake -S "$sources" -B "$folder" -G "$generator" -D "CMAKE_MAKE_PROGRAM=$program" \
        -D "CMAKE_C_COMPILER_LAUNCHER=$launcher" -D "CMAKE_CXX_COMPILER_LAUNCHER=$launcher" \
        -D "ONNXRUNTIME_INCLUDE_DIR=$headers" "${more[@]}" "$@" >"$folder.log" 2>&1 &&
        cmake --build "$folder" --parallel ${jobs:+"$jobs"} >>"$folder.log" 2>&1 || {
        cat "$folder.log" >&2
        ! grep -q "error: downloading '" "$folder.log" ||
            missing "SentencePiece cannot be fetched" "See docs/embed-cpp.md for machines without a network"
        exit 1
    }
}

place() { # name of a library in build/native, folder in runtime/
    local target=runtime/$2/$1
    cmp -s "build/native/$1" "$target" || {
        # Replace the file: writing to it would crash processes that have it loaded.
        cp "build/native/$1" "runtime/$2/.$1.$$"
        mv -f "runtime/$2/.$1.$$" "$target"
        say "$target"
    }
}
