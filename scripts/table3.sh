#!/usr/bin/env bash
# Trains the rows of the paper's Table 3 and prints them beside the paper's figures.
#
#   bash scripts/table3.sh DATA OUT [PRESET] [ROW ...]
#
# DATA is a directory of `translate-trt data prepare`. Perplexity and tokenized BLEU (beam 4, alpha 0.6)
# are measured on its validation text with the last checkpoint, as in the paper. The rows vary PRESET
# (default: base); ROW is `plain` for the preset itself, or a row's name (default: all; docs/train.md
# lists them). A second run resumes the first. OUT/results has a file for each finished run, from which
# benchmarks/record.py makes the table. Environment:
#   SEEDS     seeds; every row is trained with each (default 1)
#   PARALLEL  runs at a time (default 1); several share a GPU
#   DEVICE    auto, cpu or cuda (default auto: a GPU if there is one)
#   LAUNCH    launcher of the training (torchrun --nproc-per-node 8 --no-python)
#   OPTIONS   more flags for `translate-trt train`
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[ $# -ge 2 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data=$(realpath "$1") out=$(realpath -m "$2") preset=${3:-base} device=${DEVICE:-auto}
make_environment train
rows=("${@:4}")
[ ${#rows[@]} -gt 0 ] || mapfile -t rows < <(python -c '
from translate_trt.train.config import TABLE3
print("plain", *TABLE3, sep="\n")')
python benchmarks/record.py table3-check "$preset" "${rows[@]}"
mkdir -p "$out/results"

train_row() { # row seed
    local run=$out/$1-seed$2 name=$preset
    [ "$1" = plain ] || name=$preset-$1
    if [ ! -e "$run/checkpoint-averaged" ]; then
        set_defaults "${OPTIONS:-}" --average-checkpoints 1 --seed "$2" --device "$device"
        # shellcheck disable=SC2086  # LAUNCH and OPTIONS are lists of words
        ${LAUNCH:-} translate-trt train --config "$name" --data "$data" --output "$run" --resume \
            ${defaults[@]+"${defaults[@]}"} ${OPTIONS:-} >"$run.log" 2>&1
        [ -d "$run/checkpoint-averaged" ] || exit 255  # stopped by SIGTERM: xargs starts no more runs
    fi
    if ! grep -qs tokenized-bleu "$run/scores.json"; then
        translate-trt evaluate --reference "$data/valid.target.txt" --threads 1 --device "$device" --json \
            --source "$data/valid.source.txt" --metric bleu --metric tokenized-bleu "$run" >"$run/scores.partial"
        mv "$run/scores.partial" "$run/scores.json"
    fi
    [ -e "$out/results/$1-seed$2.json" ] ||
        python benchmarks/record.py table3-run "$run" --data "$data" --row "$1" --preset "$preset" --device "$device" \
            --out "$out/results/$1-seed$2.json"
    say "$1 with seed $2 is done"
}
export -f train_row set_defaults say
export data out preset device
# A time limit leaves all rows of the first seeds.
# shellcheck disable=SC2016  # bash -c expands $1 and $2
for seed in ${SEEDS:-1}; do
    printf "%s $seed\n" "${rows[@]}"
done | xargs -P "${PARALLEL:-1}" -L 1 bash -c 'set -euo pipefail; train_row "$1" "$2"' _
python benchmarks/record.py table3 "$out/results" --out "$out/table3.json"
