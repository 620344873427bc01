#!/usr/bin/env bash
# Measures what options of training gain: small models of one shape are trained for as many steps with and
# without each, and compared on test sets by paired bootstrap. An hour and a half of one core.
#
#   bash scripts/levers.sh TATOEBA MULTI30K [OUT]
#
# TATOEBA is DATA of scripts/distill_tatoeba.sh; MULTI30K holds train, val and test_2016_flickr in .en, .de and .fr.
# Run the script again to continue it; then record it with `python benchmarks/record.py levers OUT`.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source scripts/tatoeba.sh

[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
tatoeba=$1 multi30k=$2 out=${3:-$root/levers}
make_environment dev
mkdir -p "$out/text" "$out/scores"

# Trains OUT/NAME for as many steps as every other model. Words after -- are options of train.
model() { # name, options of data prepare... [-- options of train...]
    local name=$1 prepare=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do prepare+=("$1") && shift; done
    [ $# = 0 ] || shift
    [ ! -d "$out/$name/checkpoint-averaged" ] || return 0
    say "$name"
    [ -e "$out/$name.data/data.json" ] ||
        translate-trt data prepare --output "$out/$name.data" --vocabulary-size 4000 "${prepare[@]}"
    local again=()
    [ ! -e "$out/$name/run.json" ] || again=(--resume)
    translate-trt train --data "$out/$name.data" --output "$out/$name" ${again[@]+"${again[@]}"} \
        --config tiny --initialization xavier --batch-tokens 512 --steps 2500 --warmup-steps 250 --cooldown-steps 600 \
        --learning-rate 0.002 --learning-rate-scale 1 --learning-rate-decay none --dropout 0.1 \
        --validate-every 0 --threads 1 "$@"
}

# Compares two models on a test set.
compare() { # without, with, name of the test set, source, reference, options of evaluate...
    local scores=$out/scores/$2--$3.json
    [ -s "$scores" ] || {
        translate-trt evaluate "$out/$1" "$out/$2" --source "$4" --reference "$5" --metric bleu --metric chrf \
            --beam-size 4 --threads 1 --json "${@:6}" >"$scores.part" && mv "$scores.part" "$scores"
    }
}

text=$out/text
if [ ! -e "$text/mono.de" ]; then
    split_tatoeba "$tatoeba" "$text"
    # 20,000 random pairs, and the German sides of 60,000 others.
    paste "$text/train.en" "$text/train.de" | shuf --random-source=<(yes) >"$text/shuffled"
    head -n 20000 "$text/shuffled" | cut -f1 >"$text/few.en"
    head -n 20000 "$text/shuffled" | cut -f2 >"$text/few.de"
    head -n 2000 "$multi30k/train.en" >"$text/french.en"
    head -n 2000 "$multi30k/train.fr" >"$text/french.fr"
    sed -n '20001,80000p' "$text/shuffled" | cut -f2 >"$text/mono.de"
fi
few=(--from "$text/few.en" "$text/few.de" --valid "$text/valid.en" "$text/valid.de")

model baseline "${few[@]}"

model augmented "${few[@]}" --augment upper=0.05,title=0.05,lower=0.05,typos=0.1
compare baseline augmented unchanged "$text/test.en" "$text/test.de"
for kind in upper lower typos; do
    [ -d "$text/$kind" ] || translate-trt data augment "$kind" "$text/test.en" "$text/test.de" --output "$text/$kind"
    compare baseline augmented "$kind" "$text/$kind/source.txt" "$text/$kind/target.txt"
done

model segmentations "${few[@]}" --segmentations 3
compare baseline segmentations unchanged "$text/test.en" "$text/test.de"

model reverse --from "$text/few.de" "$text/few.en" --valid "$text/valid.de" "$text/valid.en"
[ -d "$out/reverse.bundle" ] ||
    translate-trt export "$out/reverse" --output "$out/reverse.bundle" --target onnx-int8 --max-source-length 256
[ -s "$text/mono.en" ] ||
    translate-trt translate "$text/mono.de" --bundle "$out/reverse.bundle" --beam-size 1 --output "$text/mono.en"
model back-translated "${few[@]}" --back-translated "$text/mono.en" "$text/mono.de"
compare baseline back-translated unchanged "$text/test.en" "$text/test.de"

two=(--language-tags
    --from "$multi30k/train.en" "$multi30k/train.de" --from "$text/french.en" "$text/french.fr"
    --valid "$multi30k/val.en" "$multi30k/val.de" --valid "$multi30k/val.en" "$multi30k/val.fr")
model temperature-1 "${two[@]}"
model temperature-5 "${two[@]}" -- --corpus-temperature 5
for language in de fr; do
    compare temperature-1 temperature-5 "$language" "$multi30k/test_2016_flickr.en" \
        "$multi30k/test_2016_flickr.$language" --target-language "$language"
done
