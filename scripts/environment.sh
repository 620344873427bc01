# Sourced by the other scripts: creates or updates the virtual environment .venv with the versions of
# constraints.txt, and activates it. Needs Python 3.11 or newer with venv, and the package index.
# PYTHON chooses another interpreter, TRANSLATE_TRT_VENV another directory; TRANSLATE_TRT_VENV=none uses the
# active environment as it is.

# shellcheck shell=bash
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

venv=${TRANSLATE_TRT_VENV:-$root/.venv}
python=${PYTHON:-python3}

say() { printf '\n== %s\n' "$*" >&2; }

# Sets the array `defaults` to these options, without those that are among the words.
set_defaults() { # words, options...
    local words=" $1 " word keep=1
    defaults=()
    shift
    for word in "$@"; do
        if [[ $word = --* ]]; then
            keep=1
            [[ $words != *" $word "* && $words != *" $word="* ]] || keep=0
        fi
        [ "$keep" = 0 ] || defaults+=("$word")
    done
}

make_environment() { # extra
    [ "$venv" != none ] || return 0
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "translate-trt needs Python 3.11 or newer; $python is $("$python" -V 2>&1)." >&2
        echo "Name another one, for example: PYTHON=python3.12 bash $0" >&2
        exit 1
    }
    local versions installed
    versions=$(cat pyproject.toml constraints.txt | cksum)
    installed=$(cat "$venv/installed" 2>/dev/null || true)
    # The extra nightly includes dev.
    if [ "$installed" != "$1 $versions" ] && [ "$1 $installed" != "dev nightly $versions" ]; then
        say "setting up $venv"
        [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
        # Python compiles what it imports, which is a small part of what is installed.
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
            --constraint constraints.txt --editable ".[$1]"
        echo "$1 $versions" >"$venv/installed"
    fi
    export PATH="$venv/bin:$PATH"
}

# Builds libtranslate_trt and the compiled kernels. A missing tool or header is reported and is no error.
make_libraries() { # message for that case: what happens without the libraries
    local status=0
    bash scripts/build_library.sh || status=$?
    if [ "$status" = 3 ]; then  # the kernels need less than the library
        status=0
        bash scripts/build_kernels.sh || status=$?
    fi
    case $status in
        0) ;;
        3) echo "$1" >&2 ;;
        *) return "$status" ;;
    esac
}
