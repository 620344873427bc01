#!/usr/bin/env bash
# Runs every check that needs a GPU, in 20 minutes at most, and prints a table to paste into docs/gpu.md:
#
#   bash scripts/gpu_check.sh [OUT]        default: gpu-check/
#   TRANSLATE_TRT_VENV=none ...            use the active environment, unchanged
#   WHEELS=DIR ...                         install from the wheels in DIR, without a network
#
# The script installs the package that supports the GPU's compute capability
# (runtime/backends/packages.py), with PyTorch and ONNX Runtime for CUDA. It needs the requirements of
# scripts/build_library.sh. Every check has a time limit, and a check that fails never stops the others:
# those that need its result are listed as not run. Builds, logs and measurements stay in OUT.
#
# The exit code is 0 if every check passed that could run here, 1 if one failed or ran out of time, and 3
# without a GPU.
#
# shellcheck disable=SC2329  # exported functions run through `check`
case ${1:-} in -*) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
if [ -n "${WHEELS:-}" ]; then
    [ -d "$WHEELS" ] || { echo "WHEELS is $WHEELS, which is not a folder." >&2; exit 2; }
    PIP_FIND_LINKS=$(cd "$WHEELS" && pwd)
    export PIP_FIND_LINKS PIP_NO_INDEX=1
fi
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
out=${1:-$root/gpu-check}
readonly time_in_all=${GPU_CHECK_SECONDS:-1200}

# ---- the GPU and its package ----

# shellcheck disable=SC2154  # environment.sh sets venv
if [ ! -e "$venv/installed" ]; then
    make_environment gpu,export
elif [ "$venv" != none ]; then
    export PATH="$venv/bin:$PATH" # the package is not known yet
fi
gpu=$(python -c '
from translate_trt.runtime.backends.nvidia_driver import find_gpu
found = find_gpu()
print(f"{found.name} ({found.compute_capability})" if found else "")
')
if [ -z "$gpu" ]; then
    echo "no GPU: the driver finds none (nvidia-smi lists them)." >&2
    exit 3
fi
extra=$(python -m translate_trt.runtime.backends.gpu_package) || extra=
make_environment "gpu,export${extra:+,$extra}"
# Engines run on libtranslate_trt.
[ "$venv" = none ] || make_libraries "Without libtranslate_trt the checks of engines fail."

mkdir -p "$out"
out=$(cd "$out" && pwd)
: >"$out/table.md"
declare -A passed=()
failures=() not_run=0 SECONDS=0 child=
trap 'if [ -n "$child" ]; then kill "$child" 2>/dev/null || true; fi; exit 130' INT TERM
# Caches of earlier builds would hide the build time.
export XDG_CACHE_HOME=$out/cache PYTHONUNBUFFERED=1 out

# ---- checks ----

row() { # name result seconds
    printf '| %s | %s | %s | %s |\n' "$1" "$gpu" "$2" "$3" | tee -a "$out/table.md"
}

log_of() { # name
    echo "$out/$(tr -c 'a-z0-9\n' - <<<"${1,,}").log"
}

# Runs a command in a new shell, because timeout cannot run functions.
check() { # name, seconds at most, what is missing ("" if nothing, one thing a line), command...
    local name=$1 limit=$2 missing=$3 log begin=$SECONDS result=passed status=0
    shift 3
    log=$(log_of "$name")
    rm -f "$log"
    if [ -n "$missing" ]; then
        not_run=$((not_run + 1))
        row "$name" "not run: needs ${missing//$'\n'/, }" ""
        return 0
    fi
    if [ $((time_in_all - begin)) -lt "$limit" ]; then limit=$((time_in_all - begin)); fi
    if [ "$limit" -lt 10 ]; then
        failures+=("$name")
        row "$name" "NOT RUN: the time is up" ""
        return 0
    fi
    # In the background, since bash would put off Ctrl-C, which does not reach timeout's group, until the check ends.
    timeout --kill-after=10 "$limit" bash -euo pipefail -c '"$@"' bash "$@" >"$log" 2>&1 &
    child=$!
    wait "$child" || status=$?
    child=
    case $status in
        0) passed[$name]=1 ;;
        124) result="FAILED: not finished after $limit s" ;;
        137) result="FAILED: killed after $((SECONDS - begin)) s (limits: $limit s, memory)" ;;
        *) result="FAILED ($status): $(tail -n 1 "$log" | tr '|' '/' | cut -c 1-200)" ;;
    esac
    [ "$status" = 0 ] || failures+=("$name")
    row "$name" "$result" "$((SECONDS - begin)) s"
}

needs() { # names of checks: prints the first that has not passed
    local name
    for name in "$@"; do
        [ -n "${passed[$name]:-}" ] || { echo "\"$name\""; return; }
    done
}

package_of() { # extra: prints it if its package is missing
    python -c "import ${1//-/_}" 2>/dev/null || echo "the extra [$1]"
}

cuda_torch() {
    python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
        echo "PyTorch for CUDA"
}

cuda_onnxruntime() {
    python -c '
import sys, onnxruntime
sys.exit("CUDAExecutionProvider" not in onnxruntime.get_available_providers())' 2>/dev/null ||
        echo "onnxruntime-gpu without onnxruntime"
}

tensorrt_header() { # prints what is missing if it is not installed
    [ -n "$(find -L "${TENSORRT_ROOT:-/usr/include}" -name NvInfer.h -print -quit 2>/dev/null)" ] ||
        echo "NvInfer.h in TENSORRT_ROOT or /usr/include"
}

versions() {
    nvidia-smi || echo "no nvidia-smi"
    python -m pip list --format freeze | grep -i -E 'torch|onnx|tensorrt|cuda|cudnn|numpy|triton' || true
    python -c 'import onnxruntime; print(onnxruntime.get_available_providers())' || true
    git log -1 --format=%H || true
}

corpus() {
    local language
    python scripts/generate_corpus.py --out "$out/data" --force
    for language in en de; do
        head -n 500 "$out/data/test.$language" >"$out/data/short.$language"
    done
}

train_tiny() { # more options
    translate-trt train --config tiny --output "$out/run" --force \
        --train "$out/data/train.en" "$out/data/train.de" \
        --valid "$out/data/valid.en" "$out/data/valid.de" "$@"
}

translate() { # bundle target, more options: writes $out/BUNDLE-TARGET.txt
    local bundle=$1 target=$2
    shift 2
    translate-trt translate --bundle "$out/$bundle" --target "$target" --scores --no-progress "$@" \
        "$out/data/short.en" >"$out/$bundle-$target.txt"
}

same_lines() { # bundle target precision, more options: compares with onnx-fp32
    local bundle=$1 target=$2 precision=$3
    shift 3
    translate "$bundle" "$target" "$@"
    python scripts/compare_translations.py "$out/onnx-onnx-fp32.txt" "$out/$bundle-$target.txt" \
        --precision "$precision"
}

with_penalties() { # bundle target precision, more options: compares with onnx-fp32 on the CPU
    local bundle=$1 target=$2 precision=$3 penalties=(--repetition-penalty 1.2 --no-repeat-ngram-size 2)
    shift 3
    ln -sfn onnx "$out/penalties"
    translate penalties onnx-fp32 --device cpu "${penalties[@]}"
    translate "$bundle" "$target" "${penalties[@]}" "$@"
    python scripts/compare_translations.py "$out/penalties-onnx-fp32.txt" "$out/$bundle-$target.txt" \
        --precision "$precision"
}

export_bundle() { # bundle target, more options
    local bundle=$1 target=$2
    shift 2
    translate-trt export "$out/run" --output "$out/$bundle" --force --target "$target" "$@"
}

verify() { # bundle target
    translate-trt verify "$out/$1" --checkpoint "$out/run" --target "$2" --require-engines \
        --source "$out/data/short.en" --reference "$out/data/short.de"
}

smaller() { # stripped bundle, whole bundle, target
    python - "$out/$1" "$out/$2" "$3" <<'PYTHON'
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

cuda_header() { # prints what is missing if it is not installed
    [ -n "$(find -L "${CUDAToolkit_ROOT:-/usr/local/cuda}" -name cuda_runtime_api.h -print -quit 2>/dev/null)" ] ||
        echo "cuda_runtime_api.h in CUDAToolkit_ROOT or /usr/local/cuda"
}

# In a folder of its own: the library of Python must not link TensorRT, which Python's package has, too.
configure_cpp() { # folder, more options of cmake
    local sentencepiece=build/native/library/sentencepiece/src/libsentencepiece.a options=() folder=$1
    shift
    source scripts/environment.sh
    built="The C++ library"
    source scripts/native.sh
    find_tools
    find_headers
    if [ -e "$sentencepiece" ]; then # it takes longer to build than everything else
        options=(-D "SENTENCEPIECE_LIBRARY=$root/$sentencepiece" -D
            "SENTENCEPIECE_INCLUDE_DIR=$root/build/native/third-party/sentencepiece/sentencepiece-0.2.1/sentencepiece/src")
    fi
    # shellcheck disable=SC2154  # find_headers sets it
    cmake -S runtime/cpp -B "$folder" -D TRANSLATE_TRT_BUILD_KERNELS=OFF \
        -D "ONNXRUNTIME_INCLUDE_DIR=$headers" "${options[@]}" "$@"
}

in_cpp() { # bundle target precision: compares the C++ library with onnx-fp32
    configure_cpp "$out/cpp" -D TRANSLATE_TRT_TENSORRT=ON
    cmake --build "$out/cpp" --parallel
    cmake --install "$out/cpp" --prefix "$out/installed"
    cmake -S examples/cpp_service -B "$out/service" -D "CMAKE_PREFIX_PATH=$out/installed"
    cmake --build "$out/service"
    "$out/service/translate_service" "$out/$1" "$2" <"$out/data/short.en" >"$out/$2.jsonl"
    python scripts/compare_translations.py "$out/onnx-onnx-fp32.txt" "$out/$2.jsonl" --precision "$3"
}

# Memory, copies, events, capture and replay on the GPU, without engines.
cuda_in_cpp() {
    configure_cpp "$out/cuda" -D TRANSLATE_TRT_CUDA=ON -D TRANSLATE_TRT_TESTS=ON
    cmake --build "$out/cuda" --parallel --target translate_trt_cuda_check
    "$out/cuda/tests/translate_trt_cuda_check"
}

export -f configure_cpp corpus cuda_in_cpp cuda_onnxruntime export_bundle in_cpp same_lines smaller train_tiny translate verify versions with_penalties

# ---- a model, and its translations on the CPU ----

printf '| check | GPU | result | time |\n|---|---|---|---|\n' | tee -a "$out/table.md"
check "versions" 60 "" versions
check "corpus" 60 "" corpus
model="training a tiny model"
# Without torch.compile, which takes longer than all of these steps: "training base" compiles.
check "$model" 300 "$(needs corpus; cuda_torch)" train_tiny --device cuda --compile off
if [ -z "${passed[$model]:-}" ]; then # the other checks need any model
    model="training a tiny model on the CPU instead"
    check "$model" 240 "$(needs corpus)" train_tiny --device cpu --steps 200
fi
reference="onnx-fp32 on the CPU"
check "exporting ONNX graphs" 90 "$(needs "$model")" export_bundle onnx onnx-fp32 --target onnx-fp16
check "$reference" 60 "$(needs "exporting ONNX graphs")" translate onnx onnx-fp32 --device cpu

# ---- engines ----

packages=("${extra//-/_}")
if [ "$extra" != tensorrt ]; then packages+=(tensorrt); fi
for package in "${packages[@]}"; do
    [ -n "$package" ] || continue
    name=${package//_/-}
    if [ "$name" != "$extra" ] && [ -n "$(package_of "$name")" ]; then continue; fi
    read -r -a precisions < <(python -c '
import sys
from translate_trt.runtime.backends import nvidia_driver, packages
print(*packages.precisions(sys.argv[1], nvidia_driver.compute_capability()))' "$package") ||
        precisions=(fp16 bf16 fp32)
    for precision in "${precisions[@]}"; do
        target=$name-$precision
        check "$target: building engines" 150 "$(package_of "$name"; needs "$model")" export_bundle "$target" \
            "$target" --profiles 1x64,8x64,64x64,16x256
        check "$target: loads, and parity" 90 "$(needs "$target: building engines")" \
            verify "$target" "$target"
        check "$target: two workers, the same as onnx-fp32" 60 \
            "$(needs "$target: building engines" "$reference")" \
            same_lines "$target" "$target" "$precision" --workers 2
    done
    all_options="$name-fp16: building engines with all options"
    check "$all_options" 150 "$(package_of "$name"; needs "$model")" export_bundle "$name-options" \
        "$name-fp16" --all-options --profiles 8x64,64x64
    check "$name-fp16: penalties, the same as onnx-fp32" 60 "$(needs "$all_options" "$reference")" \
        with_penalties "$name-options" "$name-fp16" fp16
    check "$name: order of equal values in TopK" 90 "$(package_of "$name")" \
        python scripts/topk_ties.py --package "$package"
done

# ---- a GPU without TensorRT ----

check "onnx-fp16 with --device cuda, the same as onnx-fp32" 120 \
    "$(cuda_onnxruntime; needs "exporting ONNX graphs" "$reference")" \
    same_lines onnx onnx-fp16 fp16 --device cuda
check "torch targets: exporting graphs" 90 "$(needs "$model")" export_bundle torch torch-fp32 \
    --target torch-fp16 --target torch-bf16 --profiles 1x64,8x64,64x64,16x256
for precision in fp32 fp16 bf16; do
    check "torch-$precision: the same as onnx-fp32" 90 \
        "$(cuda_torch; needs "torch targets: exporting graphs" "$reference")" \
        same_lines torch "torch-$precision" "$precision" --device cuda
done

all_options="torch-fp16: exporting graphs with all options"
check "$all_options" 90 "$(needs "$model")" export_bundle torch-options torch-fp16 --all-options \
    --profiles 8x64,64x64
check "torch-fp16: penalties, the same as onnx-fp32" 60 \
    "$(cuda_torch; needs "$all_options" "$reference")" \
    with_penalties torch-options torch-fp16 fp16 --device cuda

# ---- what takes longer ----

check "CUDA device functions in C++" 240 "$(cuda_header)" cuda_in_cpp

for package in "${packages[@]}"; do
    name=${package//_/-}
    whole="$name-fp16: building engines"
    [ -n "$package" ] && [ -n "${passed[$whole]:-}" ] || continue
    stripped="$name-fp16: engines without weights"
    check "$stripped" 90 "" export_bundle "$name-stripped" "$name-fp16" --strip-weights
    check "$name-fp16: they are smaller" 10 "$(needs "$stripped")" \
        smaller "$name-stripped" "$name-fp16" "$name-fp16"
    check "$name-fp16: weights put back, and parity" 90 "$(needs "$stripped")" \
        verify "$name-stripped" "$name-fp16"
    if [ "$package" = tensorrt ]; then
        check "$name-fp16: in C++, the same as onnx-fp32" 240 \
            "$(tensorrt_header; needs "$reference")" in_cpp "$name-fp16" "$name-fp16" fp16
    fi
done
check "preparing training data" 60 "$(needs corpus)" translate-trt data prepare \
    --output "$out/prepared" --force --from "$out/data/train.en" "$out/data/train.de" \
    --valid "$out/data/valid.en" "$out/data/valid.de" \
    --test "$out/data/test.en" "$out/data/test.de" --vocabulary-size 2000
check "training base: tokens per second" 150 "$(needs "preparing training data"; cuda_torch)" \
    python benchmarks/training.py --data "$out/prepared" --preset base --device cuda --warmup 8 \
    --steps 10 --rounds 3 --out "$out/training.json"
benchmark="base: steps and throughput against torch.compile"
# It writes each measurement as it ends: what a time limit cuts off is missing, and nothing else. Engines come
# first, because torch.compile's cases are the longest of both.
if [ -n "$extra" ]; then
    check "$extra-fp16: $benchmark" 420 "$(package_of "$extra"; cuda_torch)" \
        python benchmarks/gpu.py --package "${extra//-/_}" --precision fp16 --rounds 3 \
        --seconds 400 --out "$out/$extra-gpu.json"
fi
check "torch-fp16: $benchmark" 360 "$(cuda_torch)" python benchmarks/gpu.py --package torch \
    --precision fp16 --rounds 3 --seconds 345 --out "$out/torch-gpu.json"

# ---- summary ----

for name in "${failures[@]}"; do
    log=$(log_of "$name")
    if [ -f "$log" ]; then
        printf '\n== %s\n' "$name" >&2
        tail -n 15 "$log" >&2
    fi
done
for name in "${extra:-none}-fp16: $benchmark" "torch-fp16: $benchmark" "training base: tokens per second"; do
    log=$(log_of "$name")
    if [ -f "$log" ]; then cat "$log" >&2; fi
done
printf '\n%s passed, %s failed, %s not run, %s s. The table is %s; logs lie beside it.\n' \
    "${#passed[@]}" "${#failures[@]}" "$not_run" "$SECONDS" "$out/table.md" >&2
[ "${#failures[@]}" = 0 ]
