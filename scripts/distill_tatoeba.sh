#!/usr/bin/env bash
# Trains English to German for everyday sentences on Tatoeba, distills it into students with SSRU, and exports and
# verifies all; prints the table of quality and speed. Made for about three hours on two cores without a GPU.
#
#   bash scripts/distill_tatoeba.sh DATA [OUT] [FLAGS OF distill]
#
# DATA holds tatoeba-train-minus-testsets.en-de.{en,de}, 163,855 pairs (CC BY 2.0 FR, manythings.org/anki), and
# tatoeba-testsets-union.en-de.{en,de}, the test sets of the OPUS Tatoeba Challenge, sorted by length: the lines for
# validation and test are drawn from these at random. Run the script again to continue it. Measure on a machine that
# does nothing else. STEPS is the number of the teacher's steps, 5,000; it still learns after them.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source scripts/students.sh
source scripts/tatoeba.sh

[ $# -ge 1 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data=$1 out=${2:-$root/distill-tatoeba}
shift $(($# < 2 ? $# : 2))
make_environment distill

split_tatoeba "$data" "$out"

# Small batches: in as many tokens, more steps learn more (docs/results.md, choices of speedrun).
say "training the teacher"
steps=${STEPS:-5000}
again=()
[ ! -e "$out/teacher/run.json" ] || again=(--resume)
translate-trt train --config small --output "$out/teacher" ${again[@]+"${again[@]}"} \
    --train "$out/train.en" "$out/train.de" --valid "$out/valid.en" "$out/valid.de" \
    --steps "$steps" --cooldown-steps $((steps / 4)) --warmup-steps 1000 --learning-rate 0.001 --batch-tokens 1024 \
    --dropout 0.1 --initialization deepnet --validate-every 1000
[ -d "$out/teacher/checkpoint-averaged" ] || exit 1  # stopped by SIGTERM

say "learning the shortlist"
[ -e "$out/shortlist.safetensors" ] ||
    translate-trt shortlist --text "$out/train.en" "$out/train.de" --tokenizer "$out/teacher" \
        --output "$out/shortlist.safetensors" --coverage "$out/test.en" "$out/test.de"

say "exporting and verifying the teacher"
targets=(onnx-int8 onnx-fp32 onnx-int8-shortlist)
[ -d "$out/bundle" ] ||
    translate-trt export "$out/teacher" --output "$out/bundle" --attention --max-source-length 64 \
        --shortlist "$out/shortlist.safetensors" "${targets[@]/#/--target=}"
translate-trt verify "$out/bundle" --checkpoint "$out/teacher" --source "$out/test.en" --reference "$out/test.de"

say "distilling"
set_defaults "$*" --n-best 4 --beam-size 4 \
    --vocabulary-size 8000 --batch-tokens 1024 --steps 4000 --cooldown-steps 1000 --warmup-steps 600 --learning-rate 0.0015 \
    --dropout 0.1 --checkpoint-every 100 --validate-every 0 --patience 0
translate-trt distill --teacher "$out/bundle" --output "$out/distilled" \
    --source "$out/train.en" --reference "$out/train.de" \
    --valid "$out/valid.en" "$out/valid.de" --test "$out/test.en" "$out/test.de" \
    ${defaults[@]+"${defaults[@]}"} "${students[@]:2:4}" "$@"

say "drawing curves and attention"
translate-trt plot "$out/teacher" -o "$out/curves.svg" --force
translate-trt attention "Could you please tell me where the station is?" --checkpoint "$out/teacher" \
    --style matrix -o "$out/attention.svg" --force
