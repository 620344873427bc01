#!/usr/bin/env bash
# Trains a teacher on a mixed corpus of some 285,000 English-German pairs, and distills it into students of three
# sizes, each with and without SSRU; prints the table of quality and speed on every third line of newstest2014.
#
#   bash scripts/distill_mixed.sh DATA [OUT] [FLAGS OF distill]
#   TEACHER=small bash scripts/distill_mixed.sh DATA [OUT] [FLAGS OF distill]
#
# The usual teacher is of the paper's base width and made for a GPU, where it takes minutes. TEACHER=small is the
# whole in some two and a half hours of two CPU cores, as far as they go in that time: a teacher of d_model 256 that
# sees the corpus two and a half times, and three students with SSRU that see nearly all of it.
#
# The corpus has short everyday sentences, parliament, chats, image captions, news, and the documentation of two
# programs. DATA holds the aligned files that are named below, each with the endings .en and .de, from Tatoeba
# (without the OPUS test sets), the PHP manual, Europarl v7 (the first 20,000 pairs), Multi30k (task 1), BConTrasT,
# the GNOME user documentation, and the test sets of WMT. Run the script again to continue it. Measure on a machine
# that does nothing else.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source scripts/students.sh

[ $# -ge 1 ] || { sed -n '2,18s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data=$1 teacher=${TEACHER:-base}
out=${2:-$root/distill-mixed-$teacher}
shift $(($# < 2 ? $# : 2))
case $teacher in
    base)
        vocabulary=16000
        recipe=(--config base --norm pre --decoder-layers 3 --dropout 0.2 --batch-tokens 25000
            --learning-rate 0.001 --warmup-steps 1000 --steps 5000 --checkpoint-every 150)
        imitation=(--batch-tokens 16000 --steps 2000 --concurrent-students 6)
        ;;
    small)
        vocabulary=8000
        recipe=(--config small --norm pre --dropout 0.1 --steps 3200)
        imitation=(--batch-tokens 2048 --steps 2000)
        students=("${students[@]:0:${#students[@]}/2}")  # those with SSRU
        ;;
    *)
        echo "TEACHER is base or small, not $teacher." >&2
        exit 2
        ;;
esac
texts=(
    tatoeba/tatoeba-train-minus-testsets.en-de
    php-docs/php-manual.en-de
    europarl-20k/europarl-first20k.en-de
    multi30k/train
    bcontrast-chat/train
    gnome-user-docs/gnome-user-docs.en-de
)
for year in news-test2008 newstest2009 newstest2010 newstest2011 newstest2012 newstest2016 newstest2017; do
    texts+=("wmt-newstest/$year.en-de")
done
make_environment distill

mkdir -p "$out"
for side in en de; do
    for text in "${texts[@]}"; do
        cat "$data/$text.$side"
    done >"$out/train.$side"
    for pair in valid:newstest2013 test:newstest2014; do  # a third of the lines: PyTorch's own search is slow
        sed -n '1~3p' "$data/wmt-newstest/${pair#*:}.en-de.$side" >"$out/${pair%:*}.$side"
    done
done

say "preparing the corpus"
[ -e "$out/data/data.json" ] || translate-trt data prepare --output "$out/data" --vocabulary-size $vocabulary \
    --from "$out/train.en" "$out/train.de" --valid "$out/valid.en" "$out/valid.de" --max-pair-length 128

say "training the teacher"
again=()
[ ! -e "$out/teacher/run.json" ] || again=(--resume)
translate-trt train --data "$out/data" --output "$out/teacher" ${again[@]+"${again[@]}"} "${recipe[@]}" \
    --validate-every 0
[ -d "$out/teacher/checkpoint-averaged" ] || exit 1  # stopped by SIGTERM

say "exporting the teacher"
[ -d "$out/bundle" ] ||
    translate-trt export "$out/teacher" --output "$out/bundle" --target onnx-int8 --max-source-length 256

say "distilling"
set_defaults "$*" --n-best 4 --beam-size 4 \
    --vocabulary-size $vocabulary --max-pair-length 128 --warmup-steps 600 --learning-rate 0.0015 --dropout 0.1 \
    --checkpoint-every 100 --validate-every 0 --patience 0 "${imitation[@]}"
translate-trt distill --teacher "$out/bundle" --output "$out/distilled" \
    --source "$out/train.en" --reference "$out/train.de" \
    --valid "$out/valid.en" "$out/valid.de" --test "$out/test.en" "$out/test.de" \
    ${defaults[@]+"${defaults[@]}"} "${students[@]}" "$@"
