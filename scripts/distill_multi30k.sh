#!/usr/bin/env bash
# Trains a teacher on Multi30k, task 1 (English to German), and distills it into students of three sizes, each
# with and without SSRU; prints the table of quality and speed on test_2016_flickr.
#
#   bash scripts/distill_multi30k.sh DATA [OUT] [FLAGS OF distill]
#   TEACHER=wide bash scripts/distill_multi30k.sh DATA [OUT] [FLAGS OF distill]
#
# The usual teacher is small itself (d_model 256) and made for a CPU: two cores take hours. TEACHER=wide trains one
# of d_model 512, the width of the paper's base model, for a GPU: the training takes minutes.
#
# DATA holds train.en train.de val.en val.de test_2016_flickr.en test_2016_flickr.de, as for
# scripts/multi30k.sh. Run the script again to continue it. Measure on a machine that does nothing else.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source scripts/students.sh

[ $# -ge 1 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data=$1 teacher=${TEACHER:-small}
out=${2:-$root/distill-multi30k-$teacher}
shift $(($# < 2 ? $# : 2))
case $teacher in
    small)
        recipe=(--config small --steps 4000 --batch-tokens 2048)
        imitation=(--batch-tokens 1024 --steps 4000 --dropout 0.1 --validate-every 500)
        ;;
    wide)
        recipe=(--config base --norm pre --encoder-layers 3 --decoder-layers 3 --vocabulary-size 8000
            --dropout 0.4 --batch-tokens 4096 --learning-rate 0.0008 --warmup-steps 1000 --steps 4000
            --checkpoint-every 100 --validate-every 1000)
        imitation=(--batch-tokens 4096 --steps 3000 --dropout 0.2 --validate-every 1000
            --concurrent-students 6)
        ;;
    *)
        echo "TEACHER is small or wide, not $teacher." >&2
        exit 2
        ;;
esac
make_environment distill

say "training the teacher"
again=()
[ ! -e "$out/teacher/run.json" ] || again=(--resume)
translate-trt train --output "$out/teacher" ${again[@]+"${again[@]}"} "${recipe[@]}" \
    --train "$data/train.en" "$data/train.de" --valid "$data/val.en" "$data/val.de"
[ -d "$out/teacher/checkpoint-averaged" ] || exit 1  # stopped by SIGTERM

say "exporting the teacher"
[ -d "$out/bundle" ] ||
    translate-trt export "$out/teacher" --output "$out/bundle" --target onnx-int8 --max-source-length 128

say "distilling"
# A quarter of a student's usual vocabulary, small batches and some thousand steps suit 29,000 short pairs.
set_defaults "$*" \
    --vocabulary-size 8000 --warmup-steps 600 --learning-rate 0.001 --checkpoint-every 100 "${imitation[@]}"
translate-trt distill --teacher "$out/bundle" --output "$out/distilled" \
    --source "$data/train.en" --reference "$data/train.de" \
    --valid "$data/val.en" "$data/val.de" \
    --test "$data/test_2016_flickr.en" "$data/test_2016_flickr.de" \
    ${defaults[@]+"${defaults[@]}"} "${students[@]}" "$@"
