#!/usr/bin/env bash
# Installs the extra `gpu` in a fresh environment (gigabytes of packages), and shows whether ONNX Runtime
# has its CUDA provider there and finds the CUDA libraries; no GPU is needed:
#
#   bash scripts/check_gpu_extra.sh [DIR]      default: build/gpu-extra
#
# The exit code is 1 if the provider or one of its libraries, other than the driver, is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in -*) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
out=${1:-build/gpu-extra}

python3 -m venv --clear "$out"
# Without compiling libraries: only the packages count here.
TRANSLATE_TRT_LIBRARY=none "$out/bin/pip" install --quiet '.[gpu]'

"$out/bin/python" - <<'PYTHON'
import ctypes
import importlib.metadata
import sys
from pathlib import Path

import onnxruntime

for name in sorted(d.metadata["Name"] for d in importlib.metadata.distributions()):
    if name.startswith(("onnxruntime", "nvidia-")):
        print(name, importlib.metadata.version(name))
providers = onnxruntime.get_available_providers()
print("providers:", ", ".join(providers))
library = Path(onnxruntime.__file__).with_name("capi") / "libonnxruntime_providers_cuda.so"
ctypes.CDLL(str(library.with_name("libonnxruntime_providers_shared.so")))
missing = {}
for when in ("before", "after"):
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        missing[when] = str(error).partition(":")[0]
    print(f"missing {when} preload_dlls():", missing.get(when, "nothing"))
    onnxruntime.preload_dlls()
good = missing.get("after", "libcuda.so.1") == "libcuda.so.1"
sys.exit("CUDAExecutionProvider" not in providers or not good)
PYTHON
