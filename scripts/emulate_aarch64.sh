#!/usr/bin/env bash
# Compiles the kernels for aarch64 and runs their tests on emulated processors: cortex-a76 and neoverse-n1, which
# have dot products, cortex-a72, which has none, and one with all extensions.
#
#   bash scripts/emulate_aarch64.sh [OUT]
#
# OUT (default: build/aarch64) keeps what was compiled, libtranslate_trt for aarch64 among it. The exit code is 3 if a
# requirement is missing, and otherwise that of the first tests that fail. Requirements:
#
#   apt-get install cmake ninja-build g++-aarch64-linux-gnu qemu-user
#
# With CHECKPOINT, it counts instructions per sentence instead, beside CTranslate2's (docs/kernels.md):
#
#   CHECKPOINT=run/checkpoint-averaged LINES=test.en CTRANSLATE2=DIR bash scripts/emulate_aarch64.sh [OUT]
#
# DIR: a checkout of CTranslate2 4.8.1, for its headers. Libraries of both systems are those of wheels for aarch64.
# COUNT (default: 8) lines are translated one by one, and then as a batch, by one thread. What loading takes is not
# counted: it is the difference between COUNT lines and twice as many.
case ${1:-} in -*) sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
out=${1:-build/aarch64}
built="The kernels for aarch64"
source scripts/native.sh

for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v "$tool" >/dev/null ||
        missing "there is no $tool" "Install it, for example: apt-get install g++-aarch64-linux-gnu qemu-user"
done
find_tools
find_headers
mkdir -p "$out"
build runtime/cpp "$out" -D CMAKE_SYSTEM_NAME=Linux -D CMAKE_SYSTEM_PROCESSOR=aarch64 \
    -D CMAKE_C_COMPILER=aarch64-linux-gnu-gcc -D CMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    -D TRANSLATE_TRT_BUILD_LIBRARY=ON -D TRANSLATE_TRT_BUILD_KERNELS=ON -D TRANSLATE_TRT_TESTS=ON
if [ -z "${CHECKPOINT:-}" ]; then
    for processor in cortex-a72 cortex-a76 neoverse-n1 max; do
        printf '%s: ' "$processor"
        qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$processor" "$out/tests/translate_trt_kernel_tests"
    done
    exit
fi

wheels=$out/wheels
python -m pip download --quiet --no-deps --dest "$wheels" --only-binary :all: --python-version 311 \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 ctranslate2==4.8.1 onnxruntime==1.21.1
for wheel in "$wheels"/*.whl; do python -m zipfile -e "$wheel" "$wheels"; done
library=$(echo "$wheels"/ctranslate2.libs/libctranslate2-*)
TRANSLATE_TRT_ONNXRUNTIME=$(echo "$wheels"/onnxruntime/capi/libonnxruntime.so.*.*)
export TRANSLATE_TRT_ONNXRUNTIME OMP_NUM_THREADS=1

[ -d "$out/bundle" ] || translate-trt export "$CHECKPOINT" --output "$out/bundle" --target onnx-int8 >&2
python - "$CHECKPOINT" "$LINES" "$out" <<'END'
import sys
from pathlib import Path

from benchmarks.systems import convert_ctranslate2
from translate_trt.runtime.text.tokenizer import Tokenizer

checkpoint, lines, out = map(Path, sys.argv[1:])
convert_ctranslate2(checkpoint, out / "converted", "int8")
tokenizer = Tokenizer(checkpoint / "tokenizer.spm", checkpoint / "tokenizer.spm")
ids = tokenizer.encode_source_batch(lines.read_text(encoding="utf-8").splitlines())
(out / "ours.txt").write_text("".join(f"{' '.join(map(str, line))}\n" for line in ids))
pieces = map(tokenizer.source_pieces, ids)
(out / "peer.txt").write_text("".join(f"{' '.join(line)}\n" for line in pieces))
END

cc -O2 -shared -fPIC -o "$out/libcount.so" benchmarks/count_instructions.c
compile=(aarch64-linux-gnu-g++ -std=c++17 -O2 benchmarks/translate_pieces.cc)
"${compile[@]}" -o "$out/ours" -I runtime/cpp/include -L "$out" -ltranslate_trt
"${compile[@]}" -o "$out/peer" -D CTRANSLATE2 -I "$CTRANSLATE2/include" "$library" -Wl,--allow-shlib-undefined

run() { # program, model, beams, batch, lines
    head -n "$5" "$out/$1.txt" | qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max -plugin "$out/libcount.so" \
        -E "LD_LIBRARY_PATH=$out:$wheels/ctranslate2.libs" "$out/$1" "$out/$2" "$3" "$4" 2>&1
}
count() { # name, program, model, beams, batch
    { run "${@:2}" "$lines"; run "${@:2}" $((2 * lines)); } | awk -v name="$1" -v lines="$lines" '
        /^instructions/ { instructions = $2 - instructions }
        /^tokens/ { tokens = $2 - tokens }
        END { printf "| %s | %.1f | %.1f |\n", name, tokens / lines, instructions / lines / 1e6 }'
}
lines=${COUNT:-8}
printf '| system | tokens per sentence | million instructions per sentence |\n|---|---|---|\n'
for batch in 1 "$lines"; do
    for beams in 1 4; do
        setting="beam $beams, batches of $batch"
        count "CTranslate2, $setting" peer converted "$beams" "$batch"
        count "ours, $setting" ours bundle "$beams" "$batch"
        TRANSLATE_TRT_KERNELS=none count "ours without kernels, $setting" ours bundle "$beams" "$batch"
    done
done
