#!/usr/bin/env bash
# Runs every check that needs a GPU, in under ten minutes on a machine with an NVIDIA driver:
#
#   bash scripts/gpu_check.sh [OUT]        default: gpu-check/
#   TRANSLATE_TRT_VENV=none ...            use the active environment, unchanged
#
# It needs torch for CUDA, the requirements of scripts/build_library.sh, and `pip install
# 'translate-trt[cpu,export,tensorrt-rtx]'` (or [tensorrt]). If TensorRT's headers are in
# TENSORRT_ROOT or the system's folders, engines run from C++ as well. Builds and logs stay in OUT.
# Each check prints a row of the table of docs/gpu.md; the exit code is 1 if a check fails, and 3 if
# there is no GPU.
#
# shellcheck disable=SC2329  # exported functions run through `check`
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

case ${1:-} in -*) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
out=${1:-$root/gpu-check}
make_environment cpu,export,tensorrt-rtx

gpu=$(python -c '
import torch
from translate_trt.runtime.backends.driver import compute_capability
found = compute_capability()
if found is None or not torch.cuda.is_available():
    print("no GPU:", "no driver" if found is None else "torch is not built for CUDA")
else:
    print(f"{torch.cuda.get_device_name()} ({found})")
')
case $gpu in "no GPU"*) echo "$gpu" >&2; exit 3 ;; esac
# Engines run on libtranslate_trt.
[ "$venv" = none ] || make_libraries "Without libtranslate_trt the checks of engines fail."

mkdir -p "$out"
out=$(cd "$out" && pwd)
failed=0 SECONDS=0
readonly time_in_all=590
# Caches of earlier builds would hide the build time.
export XDG_CACHE_HOME=$out/cache PYTHONUNBUFFERED=1

row() { # name result seconds
    printf '| %s | %s | %s | %s s |\n' "$1" "$gpu" "$2" "$3" | tee -a "$out/table.md"
}

check() { # name, seconds at most, command...
    local name=$1 limit=$2 log begin=$SECONDS result=passed
    shift 2
    if [ $((time_in_all - begin)) -lt "$limit" ]; then limit=$((time_in_all - begin)); fi
    if [ "$limit" -le 0 ]; then
        failed=1
        row "$name" "NOT RUN: the time is up" 0
        return 1
    fi
    log=$out/$(tr -c 'a-z0-9\n' - <<<"${name,,}").log
    # A new shell, because timeout cannot run functions.
    timeout "$limit" bash -euo pipefail -c '"$@"' bash "$@" >"$log" 2>&1 || {
        result="FAILED: $(tail -n 1 "$log" | tr '|' '/' | cut -c 1-200)"
        failed=1
    }
    row "$name" "$result" $((SECONDS - begin))
    [ "$result" = passed ]
}

same_lines() { # bundle target: compares its translations with those of onnx-fp32
    local target
    for target in onnx-fp32 "$2"; do
        translate-trt translate --bundle "$1" --target "$target" --workers 2 --no-progress \
            "$out/data/test.en" >"$out/$target.txt"
    done
    compare_lines "$out/onnx-fp32.txt" "$out/$2.txt"
}

compare_lines() { # two files of translations, text or JSON
    python - "$@" <<'PYTHON'
import json
import sys

def read(name):
    lines = open(name, encoding="utf-8").read().splitlines()
    return [json.loads(line)["translation"] for line in lines] if name.endswith("l") else lines

ours, theirs = map(read, sys.argv[1:])
same = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
print(f"{100 * same:.2f} % of {len(ours)} lines are the same")
sys.exit(same < 0.999)
PYTHON
}

tensorrt_header() { # prints its path if it is installed
    find -L "${TENSORRT_ROOT:-/usr/include}" -name NvInfer.h -print -quit 2>/dev/null
}

# In a folder of its own: the library of Python must not link TensorRT, which Python's package has, too.
in_cpp() { # bundle target: compares the C++ library with the output of same_lines
    local sentencepiece=build/native/library/sentencepiece/src/libsentencepiece.a options=()
    source scripts/environment.sh
    built="The C++ library"
    source scripts/native.sh
    find_tools
    find_headers
    if [ -e "$sentencepiece" ]; then # it takes longer to build than everything else
        options=(-D "SENTENCEPIECE_LIBRARY=$root/$sentencepiece" -D
            "SENTENCEPIECE_INCLUDE_DIR=$root/build/native/_deps/sentencepiece-src/sentencepiece/src")
    fi
    # shellcheck disable=SC2154  # find_headers sets it
    cmake -S runtime/cpp -B "$out/cpp" -D TRANSLATE_TRT_TENSORRT=ON \
        -D TRANSLATE_TRT_BUILD_KERNELS=OFF -D "ONNXRUNTIME_INCLUDE_DIR=$headers" "${options[@]}"
    cmake --build "$out/cpp" --parallel
    cmake --install "$out/cpp" --prefix "$out/installed"
    cmake -S examples/cpp_service -B "$out/service" -D "CMAKE_PREFIX_PATH=$out/installed"
    cmake --build "$out/service"
    "$out/service/translate_service" "$1" "$2" <"$out/data/test.en" >"$out/$2.jsonl"
    compare_lines "$out/onnx-fp32.txt" "$out/$2.jsonl"
}

smaller() { # stripped bundle, whole bundle, target
    python - "$@" <<'PYTHON'
import sys
from pathlib import Path
stripped, whole = (
    sum(path.stat().st_size for path in Path(bundle, "targets", sys.argv[3]).glob("*.engine"))
    for bundle in sys.argv[1:3]
)
print(f"engines of {stripped} bytes without weights, {whole} with them")
sys.exit(stripped >= whole)
PYTHON
}

verify() { # bundle target
    translate-trt verify "$1" --checkpoint "$out/run" --target "$2" --require-engines \
        --source "$out/data/short.en" --reference "$out/data/short.de"
}

export out
export -f same_lines compare_lines in_cpp smaller verify

check "corpus" 60 python scripts/generate_corpus.py --out "$out/data" --force || exit 1
for language in en de; do head -n 500 "$out/data/test.$language" >"$out/data/short.$language"; done
check "training a tiny model" 120 translate-trt train --config tiny --output "$out/run" --force \
    --train "$out/data/train.en" "$out/data/train.de" \
    --valid "$out/data/valid.en" "$out/data/valid.de" --device cuda || exit 1

for package in tensorrt_rtx tensorrt; do
    python -c "import $package" 2>/dev/null || { row "$package" "not installed" 0; continue; }
    name=${package//_/-}
    bundle=$out/$name
    check "$name: building engines" 150 translate-trt export "$out/run" --output "$bundle" --force \
        --target onnx-fp32 --target "$name-fp32" --target "$name-fp16" --target "$name-bf16" \
        --profiles 1x64,8x64,64x64,16x256 || continue
    for precision in fp32 fp16 bf16; do
        check "$name-$precision: loads, and parity" 60 verify "$bundle" "$name-$precision" || true
    done
    check "$name-fp32: two workers, the same as onnx-fp32" 60 same_lines "$bundle" "$name-fp32" ||
        true
    if [ "$package" = tensorrt ] && [ -n "$(tensorrt_header)" ]; then
        check "$name-fp32: in C++, the same as onnx-fp32" 150 in_cpp "$bundle" "$name-fp32" || true
    fi
    if check "$name-fp16: engines without weights" 60 translate-trt export "$out/run" \
        --output "$bundle-stripped" --force --target "$name-fp16" --strip-weights; then
        check "$name-fp16: they are smaller" 10 \
            smaller "$bundle-stripped" "$bundle" "$name-fp16" || true
        check "$name-fp16: weights put back, and parity" 60 verify "$bundle-stripped" \
            "$name-fp16" || true
    fi
    check "$name-fp16: base, steps and throughput against torch.compile" 240 \
        python benchmarks/gpu.py --package "$package" --precision fp16 --rounds 3 \
        --out "$out/$name-gpu.json" || true
done

if check "preparing training data" 60 translate-trt data prepare --output "$out/prepared" --force \
    --from "$out/data/train.en" "$out/data/train.de" \
    --valid "$out/data/valid.en" "$out/data/valid.de" \
    --test "$out/data/test.en" "$out/data/test.de" --vocabulary-size 2000; then
    check "training base: tokens per second" 120 python benchmarks/training.py \
        --data "$out/prepared" --preset base --device cuda --steps 10 --rounds 2 \
        --out "$out/training.json" || true
fi

for log in "$out"/*torch-compile.log "$out"/training-base*.log; do
    if [ -f "$log" ]; then cat "$log" >&2; fi
done
exit $failed
