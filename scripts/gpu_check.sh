#!/usr/bin/env bash
# Checks on a GPU, in three commands that each stand alone (docs/gpu.md):
#
#   bash scripts/gpu_check.sh prepare [OUT]   anywhere, without a GPU: a model, bundles, expected translations
#   bash scripts/gpu_check.sh check [OUT]     on the machine with the GPU, at most 7 minutes: are results right?
#   bash scripts/gpu_check.sh speed [OUT]     on the machine with the GPU, at most 5 minutes: how fast is it?
#
# `prepare` needs the package index and the requirements of scripts/build_library.sh. `check` and `speed` need
# no network: copy OUT (default: gpu-check/, below 40 MB) with the checkout. They use .venv where it exists,
# otherwise the active environment, which they do not change. Environment:
#   RESULTS  folder for results (default: OUT/results): table.md, check.log, speed.log and JSON, written as
#            they come
#   DEVICE   device of the torch targets, such as cuda:1 or xpu. cpu: a rehearsal of all three commands
#            without a GPU, at the smallest sizes
#   CXX      C++ compiler, for the checks in C++
#   WHEELS   packages that the machine with the GPU may lack
#   TRANSLATE_TRT_VENV  none: `prepare` uses the active environment, and the libraries as they are built
#   SECONDS_IN_ALL  another limit for `check` or `speed`
#
# The exit code is 0 if every check passed that could run here, 1 if one failed or ran out of time, 2 for a
# wrong call or an OUT that is not prepared, and 3 without a GPU.
# shellcheck disable=SC2329  # exported functions run through `check`
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
case ${1:-} in prepare | check | speed) ;; *) sed -n '2,21s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
out=${2:-$root/gpu-check}
mkdir -p "$out"
out=$(cd "$out" && pwd) results=${RESULTS:-$out/results} device=${DEVICE:-cuda}
read -r -a wheels <<<"${WHEELS-backports.zstd joblib regex sacremoses}"
# shellcheck disable=SC2154  # environment.sh sets venv
[ ! -x "$venv/bin/python" ] || export PATH="$venv/bin:$PATH"
# The package without an installation; OUT/python also has what `check` unpacks of OUT/wheels.
mkdir -p "$out/python/translate_trt" "$results"
ln -sfn "$root"/{runtime,export,train} "$root/runtime/namespace/__main__.py" "$out/python/translate_trt"
export PYTHONPATH=$out/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 XDG_CACHE_HOME=$out/cache
export out results device

if [ "$device" = cpu ]; then
    corpus=(--sentences 300 --valid 8 --test 8) training=(--steps 4 --vocabulary-size 400)
    vocabulary=400
    steps=(--device cpu --preset tiny --vocabulary 400 --source-length 16 --steps 8 --rounds 1)
    batches=2,1 few=2 large=2 preset=(--preset tiny --warmup 0 --steps 1 --rounds 1)
else
    corpus=() training=() vocabulary=2000 steps=(--rounds 3)
    batches=64,1,256 few=64,1 large=64 preset=(--preset base --warmup 8 --steps 10 --rounds 3)
fi

# ---- what `prepare` and `check` have in common ----

trt() { python3 -m translate_trt "$@"; }

translate() { # bundle target kind file, more options
    local options=()
    case $3 in
        short) options=(--max-length 5) ;;
        penalties) options=(--repetition-penalty 1.2 --no-repeat-ngram-size 2) ;;
    esac
    trt translate --bundle "$out/$1" --target "$2" --scores --no-progress "${options[@]}" "${@:5}" \
        "$out/source.en" >"$4"
}

export_bundles() { # package precisions: a bundle of them, and one of the first precision with all options
    local targets=() precision
    for precision in "${@:2}"; do targets+=(--target "$1-$precision"); done
    trt export "$out/run" --output "$out/$1" --force "${targets[@]}" --profiles 1x64,8x64,64x64,16x256
    trt export "$out/run" --output "$out/$1-options" --force --target "$1-$2" --all-options \
        --profiles 8x64,64x64,16x256
}

# ---- prepare ----

prepare() {
    local language part kind
    if [ "$venv" != none ] && [ ! -e "$venv/installed" ]; then make_environment cpu,export; fi
    [ "$venv" = none ] || make_libraries "Without libtranslate_trt, no torch target or engine runs."
    mkdir -p "$out"/{libraries,expected,wheels}
    cp runtime/native/libtranslate_trt.so "$out/libraries/libtranslate_trt.so.0" # its name for the linker
    cp runtime/kernels/libtranslate_trt_kernels.so "$out/libraries"
    [ ! -d build/native/archives ] || cp -r build/native/archives "$out"
    [ ${#wheels[@]} = 0 ] || python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --constraint constraints.txt --dest "$out/wheels" "${wheels[@]}"

    python3 scripts/generate_corpus.py --out "$out/data" --force "${corpus[@]}"
    head -n 500 "$out/data/test.en" >"$out/source.en"
    trt train --config tiny --output "$out/run" --force "${training[@]}" \
        --train "$out"/data/train.{en,de} --valid "$out"/data/valid.{en,de}
    rm -rf "$out"/run/checkpoint-{0*,best}
    trt export "$out/run" --output "$out/reference" --force --target onnx-fp32
    for kind in plain short penalties; do
        translate reference onnx-fp32 "$kind" "$out/expected/$kind.txt" --device cpu
    done
    trt export "$out/run" --output "$out/onnx" --force --target onnx-fp16
    export_bundles torch fp16 fp32 bf16
    if [ "$device" != cpu ]; then # compiles kernels for all GPUs, which takes minutes
        python3 -c 'import triton' 2>/dev/null || python3 -m pip install --quiet triton
        trt export "$out/run" --output "$out/cuda" --force --target cuda-fp16 --profiles 1x64,8x64,64x64,16x256
    fi
    # Training is measured at the lengths of WMT14: two lines are one.
    for part in train valid test; do
        for language in en de; do
            paste -d ' ' - - <"$out/data/$part.$language" >"$out/data/joined-$part.$language"
        done
    done
    trt data prepare --output "$out/prepared" --force --from "$out"/data/joined-train.{en,de} \
        --valid "$out"/data/joined-valid.{en,de} --test "$out"/data/joined-test.{en,de} \
        --vocabulary-size "$vocabulary"
    rm -rf "$out"/{data,cache,reference}
    du -sh "$out" >&2
}

# ---- check and speed ----

passed=0 not_run=0 failures=() child=
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM

row() { printf '| %s | %s | %s |\n' "$@" | tee -a "$results/table.md"; } # name result time

# Runs a command in a new shell, because timeout cannot run functions. Fails if the check did not pass.
check() { # name, seconds at most, what is missing ("" if nothing), command...
    local name=$1 limit=$2 begin=$SECONDS status=0 result=passed
    if [ -n "$3" ]; then
        not_run=$((not_run + 1))
        row "$name" "not run: needs $3" ""
        return 1
    fi
    # Ten seconds for what ignores timeout's first signal.
    if [ $((seconds_in_all - 10 - begin)) -lt "$limit" ]; then limit=$((seconds_in_all - 10 - begin)); fi
    if [ "$limit" -lt 5 ]; then
        failures+=("$name")
        row "$name" "NOT RUN: the time is up" ""
        return 1
    fi
    printf '\n== %s\n' "$name" >>"$log"
    # In the background, since bash would put off Ctrl-C, which does not reach timeout's group, until the check ends.
    timeout --kill-after=10 "$limit" bash -euo pipefail -c '"$@"' bash "${@:4}" >"$results/last.log" 2>&1 &
    child=$!
    wait "$child" || status=$?
    child=
    cat "$results/last.log" >>"$log"
    case $status in
        0) passed=$((passed + 1)) ;;
        124) result="FAILED: not finished after $limit s" ;;
        137) result="FAILED: killed after $((SECONDS - begin)) s (limits: $limit s, memory)" ;;
        *) result="FAILED ($status): $(tail -n 1 "$results/last.log" | tr '|' '/' | cut -c 1-200)" ;;
    esac
    # A capture that fails costs speed alone.
    ! grep -q 'without a CUDA graph' "$results/last.log" || result+=", without CUDA graphs"
    rm -f "$results/last.log"
    [ "$status" = 0 ] || failures+=("$name")
    row "$name" "$result" "$((SECONDS - begin)) s"
    return "$((status != 0))"
}

# Prints the GPU, then each package of engines that is installed and supports it, with its precisions.
describe() {
    python3 - "$device" <<'PYTHON'
import sys
from importlib.util import find_spec
from translate_trt.runtime.backends import nvidia_driver, packages
kind = sys.argv[1].partition(":")[0]
gpu = nvidia_driver.find_gpu() if kind == "cuda" else None
name = "CPU" if kind == "cpu" else ""
if gpu is not None:
    name = f"{gpu.name} ({gpu.compute_capability})"
elif kind != "cpu" and find_spec("torch"):  # a GPU of AMD or Intel
    import torch
    module = getattr(torch, kind)
    name = module.get_device_name() if module.is_available() else ""
print(name)
for package in packages.SUPPORT if gpu is not None else ():
    if find_spec(package) and packages.supports(package, gpu.compute_capability):
        print(packages.extra(package), *packages.precisions(package, gpu.compute_capability))
PYTHON
}

begin() { # title, seconds in all
    seconds_in_all=${SECONDS_IN_ALL:-$2} log=$results/$1.log
    [ -d "$out/prepared" ] || {
        echo "$out is not prepared: bash scripts/gpu_check.sh prepare, on a machine with a network." >&2
        exit 2
    }
    export TRANSLATE_TRT_LIBRARY=$out/libraries/libtranslate_trt.so.0
    export TRANSLATE_TRT_KERNELS=$out/libraries/libtranslate_trt_kernels.so
    local wheel
    for wheel in "${wheels[@]}"; do
        python3 -m pip show --quiet "$wheel" 2>/dev/null || python3 -m pip install --quiet --no-index --no-deps \
            --find-links "$out/wheels" --target "$out/python" "$wheel"
    done
    mapfile -t described < <(describe)
    gpu=${described[0]:-}
    [ -n "$gpu" ] || { echo "no GPU: no driver shows one (nvidia-smi lists NVIDIA's)." >&2; exit 3; }
    : >"$log"
    printf '\n| %s on %s | result | time |\n|---|---|---|\n' "$1" "$gpu" | tee -a "$results/table.md"
    check versions 20 "" versions || true
    no_torch=$(python3 -c "import torch; torch.zeros(1, device='$device')" >/dev/null 2>&1 ||
        echo "PyTorch for $device")
    no_cuda=$([[ $device == cuda* && $gpu != *CPU* && -d $out/cuda ]] || echo "an NVIDIA GPU and $out/cuda")
}

summary() {
    [ ${#failures[@]} = 0 ] || tail -n 40 "$log" >&2
    printf '\n%s passed, %s failed, %s not run, %s s. Results are in %s.\n' \
        "$passed" "${#failures[@]}" "$not_run" "$SECONDS" "$results" >&2
    [ ${#failures[@]} = 0 ]
}

versions() {
    nvidia-smi || echo "no nvidia-smi"
    python3 -m pip list --format freeze | grep -i -E 'torch|onnx|tensorrt|cuda|cudnn|numpy|triton' || true
    git log -1 --format=%H || true
}

same() { # bundle target kind, more options: compares with onnx-fp32 on the CPU
    translate "$1" "$2" "$3" "$results/found.txt" --device "$device" "${@:4}"
    python3 scripts/compare_translations.py "$out/expected/$3.txt" "$results/found.txt" --precision "${2##*-}"
    rm "$results/found.txt"
}

# Small batches of three workers: sentences join, move between rows, and change the number of slots.
check_package() { # package, what is missing, precisions
    local package=$1 missing=$2 first=$3 precision
    for precision in "${@:3}"; do
        check "$package-$precision: the same as onnx-fp32" 60 "$missing" \
            same "$package" "$package-$precision" plain || true
    done
    check "$package-$first: 3 workers, small batches" 60 "$missing" \
        same "$package" "$package-$first" plain --workers 3 --batch-tokens 512 || true
    check "$package-$first: short translations" 60 "$missing" \
        same "$package" "$package-$first" short || true
    check "$package-$first: penalties, with all options" 60 "$missing" \
        same "$package-options" "$package-$first" penalties || true
}

variant() { # package precision flag: engines that are built with a flag of export
    trt export "$out/run" --output "$out/$1$3" --force --target "$1-$2" "$3" --profiles 8x64,16x256
    same "$1$3" "$1-$2" plain
}

# Memory, copies, events, capture and replay on the GPU, without engines.
cuda_in_cpp() {
    local library=$TRANSLATE_TRT_LIBRARY cpp=runtime/cpp
    "${CXX:-c++}" -std=c++17 -O1 -pthread -I $cpp/include -I $cpp/src -I $cpp/tests $cpp/tests/cuda_check.cc \
        $cpp/src/backends/cuda_driver.cc $cpp/src/base/platform_posix.cc "$library" -ldl \
        "-Wl,-rpath,${library%/*}" -o "$out/cuda_check"
    "$out/cuda_check"
}

# In a folder of its own: the library of Python must not link TensorRT, which Python's package has, too.
tensorrt_in_cpp() { # precision
    cmake -S runtime/cpp -B "$out/cpp" -D TRANSLATE_TRT_BUILD_KERNELS=OFF -D TRANSLATE_TRT_ONNXRUNTIME=OFF \
        -D TRANSLATE_TRT_TENSORRT=ON -D "TRANSLATE_TRT_ARCHIVES=$out/archives"
    cmake --build "$out/cpp" --parallel
    cmake --install "$out/cpp" --prefix "$out/installed"
    cmake -S examples/cpp_service -B "$out/service" -D "CMAKE_PREFIX_PATH=$out/installed"
    cmake --build "$out/service"
    "$out/service/translate_service" "$out/tensorrt" "tensorrt-$1" <"$out/source.en" >"$results/found.jsonl"
    python3 scripts/compare_translations.py "$out/expected/plain.txt" "$results/found.jsonl" --precision "$1"
}

without_kernels() { TRANSLATE_TRT_KERNELS=none "$@"; }

check_all() {
    local line package precisions missing=
    begin check 420
    check_package torch "$no_torch" fp16 fp32 bf16
    check "cuda-fp16: the same as onnx-fp32" 60 "$no_cuda" same cuda cuda-fp16 plain || true
    check "cuda-fp16: 3 workers, small batches" 60 "$no_cuda" \
        same cuda cuda-fp16 plain --workers 3 --batch-tokens 512 || true
    check "cuda-fp16: short translations" 60 "$no_cuda" same cuda cuda-fp16 short || true
    check "torch-fp16 without kernels: the same as onnx-fp32" 60 "$no_torch" \
        without_kernels same torch torch-fp16 plain || true
    # On a GPU, the tests of kernels run what they run in Triton's interpreter elsewhere.
    [ "$device" != cpu ] && python3 -c 'import pytest' 2>/dev/null || missing="pytest, and a GPU"
    check "kernels, against float64" 90 "$missing" python3 -m pytest -q -p no:cacheprovider \
        tests/runtime/gpu --deselect tests/runtime/gpu/test_programs.py || true
    missing=
    command -v "${CXX:-c++}" >/dev/null || missing="a C++ compiler (CXX)"
    check "CUDA device functions in C++" 90 "$missing" cuda_in_cpp || true
    missing=$(python3 -c '
import sys, onnxruntime
sys.exit("CUDAExecutionProvider" not in onnxruntime.get_available_providers())' 2>/dev/null ||
        echo "onnxruntime-gpu without onnxruntime")
    check "onnx-fp16 with --device $device, the same as onnx-fp32" 90 "$missing" same onnx onnx-fp16 plain || true
    [ ${#described[@]} -gt 1 ] || check engines 0 "the extra [tensorrt] or [tensorrt-rtx], for this GPU" || true
    for line in "${described[@]:1}"; do
        read -r package precisions <<<"$line"
        read -r -a precisions <<<"$precisions"
        check "$package: building engines" 200 "" export_bundles "$package" "${precisions[@]}" || continue
        check_package "$package" "" "${precisions[@]}"
        check "$package: order of equal values in TopK" 60 "" \
            python3 scripts/topk_ties.py --package "${package//-/_}" || true
        check "$package: engines without weights" 90 "" \
            variant "$package" "${precisions[0]}" --strip-weights || true
        [ "$package" != tensorrt ] || check "tensorrt: kernels as plugins" 120 "" \
            variant tensorrt "${precisions[0]}" --plugins || true
        [ "$package" != tensorrt ] || check "tensorrt: in C++, the same as onnx-fp32" 150 \
            "$([ -n "$(find -L "${TENSORRT_ROOT:-/usr/include}" -name NvInfer.h -print -quit 2>/dev/null)" ] ||
                echo "NvInfer.h in TENSORRT_ROOT or /usr/include")" tensorrt_in_cpp "${precisions[0]}" || true
    done
    summary
}

measure() { # package, more options of benchmarks/gpu.py
    python3 benchmarks/gpu.py --package "$1" --precision fp16 --work "$out/work-$1" "${@:2}"
}

train_speed() { python3 benchmarks/training.py --data "$out/prepared" --device "${device%%:*}" "$@"; }

speed_all() {
    local line package
    begin speed 300
    for line in "${described[@]:1}"; do
        package=${line%% *} package=${package//-/_}
        check "$package: steps of base with $batches sentences" 140 "" measure "$package" "${steps[@]}" \
            --systems engines --batches "$batches" --seconds 130 --out "$results/$package.json" || true
    done
    check "torch: steps of base with $batches sentences" 75 "$no_torch" measure torch "${steps[@]}" \
        --systems graphs --batches "$batches" --seconds 65 --out "$results/torch.json" || true
    check "torch: the same without kernels, $few" 45 "$no_torch" without_kernels measure torch "${steps[@]}" \
        --systems graphs --batches "$few" --seconds 35 --out "$results/torch-without.json" || true
    check "torch: kernels of these steps" 35 "$no_torch" measure torch "${steps[@]}" \
        --batches "$batches" --case "$large graphs" --profile --out "$results/kernels.json" || true
    check "cuda: steps of base with $few sentences" 80 "${no_cuda:-$no_torch}" measure cuda "${steps[@]}" \
        --systems engines --batches "$few" --seconds 70 --out "$results/cuda.json" || true
    check "training base: tokens per second" 65 "$no_torch" train_speed "${preset[@]}" \
        --out "$results/training.json" || true
    check "training base without padding" 65 "$no_torch" train_speed "${preset[@]}" \
        --set packing=on --set fused_norm=on --out "$results/training-packed.json" || true
    check "training base as CUDA graphs" 65 "$no_torch" train_speed "${preset[@]}" \
        --set cuda_graphs=on --out "$results/training-graphs.json" || true
    cat "$log" >&2
    summary
}

export -f trt translate export_bundles versions same variant cuda_in_cpp tensorrt_in_cpp measure
export -f train_speed without_kernels
case $1 in
    prepare) prepare ;;
    check) check_all ;;
    speed) speed_all ;;
esac
