#!/usr/bin/env bash
# Trains parsers on the first trees of CRAFT and scores them on its dev and test articles (docs/parsing.md).
#
#   bash scripts/parsing_craft.sh TREEBANK OUT [SIZE ...]
#
# TREEBANK has trees one per line, as train.tree, dev.tree and test.tree (.gz), made of the articles in
# structural-annotation/treebank/penn of github.com/UCDenver-ccp/CRAFT. SIZE is a number of training trees
# (default: 1000 5000 10000 22000). The script prints labelled F1 for FP32 and int8 bundles. A second run
# resumes the first. OUT/results has a file for each size, from which benchmarks/parsing.py makes the table.
# Environment:
#   BEAMS    beam sizes of the last size; the others have the first alone (default "4 1 21")
#   DEVICE   auto, cpu or cuda, of the training (default auto: a GPU if there is one)
#   OPTIONS  more flags for `translate-trt train`, such as "--steps 12000 --d-model 512"
#   STAGES   stages to run, of "prepare train parse" (default: all), for example "train" on a machine with a GPU
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[ $# -ge 2 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
treebank=$(realpath "$1") out=$(realpath -m "$2") stages=" ${STAGES:-prepare train parse} "
sizes=("${@:3}")
[ ${#sizes[@]} -gt 0 ] || sizes=(1000 5000 10000 22000)
make_environment export,cpu
mkdir -p "$out/results"

trees() { # train, dev or test
    if [ -e "$treebank/$1.tree.gz" ]; then zcat "$treebank/$1.tree.gz"; else cat "$treebank/$1.tree"; fi
}

schedule() { # steps, warm-up, cooldown for a number of trees: fewer for small corpora, which overfit sooner
    if [ "$1" -le 1000 ]; then
        echo 1500 400 400
    elif [ "$1" -le 5000 ]; then
        echo 4000 1000 900
    elif [ "$1" -le 10000 ]; then
        echo 5400 1000 1000
    else
        echo 7500 1000 1700
    fi
}

for size in "${sizes[@]}"; do
    place=$out/$size
    if [[ $stages = *" prepare "* ]] && [ ! -e "$place/data/data.json" ]; then
        say "$size trees: preparing"
        mkdir -p "$place"
        trees train | sed -n "1,${size}p" >"$place/train.tree"
        trees dev >"$place/dev.tree"
        trees test >"$place/test.tree"
        translate-trt data prepare --trees "$place/train.tree" --valid-trees "$place/dev.tree" \
            --test-trees "$place/test.tree" --source-vocabulary-size 8000 --source-language en --output "$place/data"
    fi
    if [[ $stages = *" train "* ]] && [ ! -e "$place/run/checkpoint-averaged" ]; then
        say "$size trees: training"
        read -r steps warmup cooldown <<<"$(schedule "$size")"
        set_defaults "${OPTIONS:-}" \
            --device "${DEVICE:-auto}" --encoder-layers 4 --decoder-layers 3 --d-model 256 --d-ff 1024 --heads 4 \
            --dropout 0.1 --attention-dropout 0.1 --guided-alignment 0.5 --guided-alignment-layer 1 \
            --batch-tokens 2048 --steps "$steps" --warmup-steps "$warmup" --cooldown-steps "$cooldown" \
            --learning-rate-scale 0.7 \
            --validate-every 800 --checkpoint-every 200 --patience 0
        # shellcheck disable=SC2086  # OPTIONS is a list of words
        translate-trt train --config parsing --data "$place/data" --output "$place/run" --resume \
            ${defaults[@]+"${defaults[@]}"} ${OPTIONS:-}
        [ -e "$place/run/checkpoint-averaged" ] || { say "stopped; run it again to resume"; exit 0; }
    fi
    if [[ $stages = *" parse "* ]] && [ ! -e "$out/results/$size.json" ]; then
        say "$size trees: parsing"
        read -ra beams <<<"${BEAMS:-4 1 21}"
        [ "$size" = "${sizes[-1]}" ] || beams=("${beams[0]}")
        python benchmarks/parsing.py measure "$place" --beams "${beams[@]}" --out "$out/results/$size.json"
    fi
done
[[ $stages != *" parse "* ]] || python benchmarks/parsing.py table "$out/results" --out "$out/parsing-craft.json"
