#!/usr/bin/env bash
# Installs a Triton Inference Server with its Python backend and clients, without Docker and as any
# user, into an environment of its own: for docs/serve.md, its tests and its benchmark.
#
#   bash scripts/triton_server.sh     # then .cache/triton-server/bin/tritonserver
#
# The server comes from NVIDIA's package nvidia-pytriton, and its backend runs the runtime of this
# working tree. It needs Linux on x86-64, Python 3.11 or 3.12 as a shared library, and the package
# index; the exit code is 3 if one of these is missing.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

readonly place=$root/.cache/triton-server
# The backend was compiled for numpy before 2. The other packages are those of the runtime.
readonly server=nvidia-pytriton==0.7.0
readonly packages=("tritonclient[grpc,http]==2.51.0" "numpy==1.26.4" onnxruntime sentencepiece click tqdm)

missing() { # what, what to do
    printf 'The Triton server cannot be made: %s. %s\n' "$1" "$2" >&2
    exit 3
}

inside() { # Python code, in the environment
    "$place/bin/python" -c "$1"
}

check_machine() {
    [ "$(uname -sm)" = "Linux x86_64" ] || missing "this is $(uname -sm)" "Use Linux on x86-64"
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' ||
        missing "$python is $("$python" -V 2>&1)" "Name Python 3.11 or 3.12 with PYTHON"
}

# The package's dependencies serve to embed the server in a Python program, and are not needed here.
install() {
    local pip
    rm -rf "$place"
    "$python" -m venv "$place"
    pip=("$place/bin/python" -m pip install --quiet --disable-pip-version-check)
    grep -E '^(onnxruntime|sentencepiece|click|tqdm)==' constraints.txt >"$place/versions"
    "${pip[@]}" --constraint "$place/versions" "${packages[@]}" &&
        "${pip[@]}" --no-deps "$server" ||
        missing "its packages cannot be installed" "See what pip says above"
}

# The backend loads the stub of the interpreter's version from its own folder.
arrange() {
    local site version triton library
    site=$(inside 'import sysconfig; print(sysconfig.get_path("purelib"))')
    version=$(inside 'import sys; print("%d.%d" % sys.version_info[:2])')
    library=$(inside 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
    [ -e "$library/libpython$version.so.1.0" ] ||
        missing "there is no libpython$version.so.1.0 in $library" "Install it, or set PYTHON"
    triton=$site/pytriton/tritonserver
    cp "$triton/python_backend_stubs/$version/triton_python_backend_stub" "$triton/backends/python/"
    mkdir -p "$place/tree/translate_trt"
    ln -sfn "$root/runtime" "$place/tree/translate_trt/runtime"
    echo "$place/tree" >"$site/translate-trt.pth"
    # The stub finds the environment by the first python3 on the path.
    cat >"$place/bin/tritonserver" <<END
#!/bin/sh
export PATH='$place/bin':"\$PATH"
export LD_LIBRARY_PATH='$library'"\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
unset PYTHONPATH PYTHONHOME
exec '$triton/bin/tritonserver' --backend-directory '$triton/backends' "\$@"
END
    chmod +x "$place/bin/tritonserver"
}

check_machine
wanted=$("$python" -V && cat scripts/triton_server.sh constraints.txt | sha256sum)
if [ "$(cat "$place/installed" 2>/dev/null)" != "$wanted" ]; then
    say "setting up a Triton server in $place"
    install
    arrange
    echo "$wanted" >"$place/installed"
fi
