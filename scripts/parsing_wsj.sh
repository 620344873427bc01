#!/usr/bin/env bash
# Trains the paper's parser on the Wall Street Journal and scores it (section 6.3, Table 4; docs/parsing.md).
#
#   bash scripts/parsing_wsj.sh WSJ OUT
#
# WSJ is the directory of the licensed Penn Treebank 3 with the sections: parsed/mrg/wsj. The parser is trained
# on sections 2 to 21; section 22 selects the checkpoint, section 23 is the test set. A second run resumes the
# first. The paper has an F1 of 91.3 without other trees. Environment:
#   DEVICE   auto, cpu or cuda (default auto: a GPU if there is one)
#   OPTIONS  more flags for `translate-trt train`
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[ $# -eq 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
wsj=$(realpath "$1") out=$(realpath -m "$2")
for section in {02..23}; do
    [ -d "$wsj/$section" ] || { echo "$wsj has no section $section; name the directory parsed/mrg/wsj." >&2; exit 1; }
done
make_environment train
mkdir -p "$out"

if [ ! -e "$out/data/data.json" ]; then
    say "preparing sections 2 to 21, 22 and 23"
    find "$wsj"/{02..21} -name '*.mrg' -print0 | sort -z | xargs -0 cat >"$out/train.mrg"
    translate-trt data prepare --trees "$out/train.mrg" --valid-trees "$wsj/22" --test-trees "$wsj/23" \
        --source-language en --output "$out/data"
fi
if [ ! -e "$out/run/checkpoint-averaged" ]; then
    say "training"
    set_defaults "${OPTIONS:-}" --device "${DEVICE:-auto}"
    # shellcheck disable=SC2086  # OPTIONS is a list of words
    translate-trt train --config parsing --data "$out/data" --output "$out/run" --resume \
        ${defaults[@]+"${defaults[@]}"} ${OPTIONS:-}
    [ -e "$out/run/checkpoint-averaged" ] || { say "stopped; run it again to resume"; exit 0; }
fi
for split in valid test; do
    say "section $([ $split = valid ] && echo 22 || echo 23): beam 21, length penalty 0.3, source + 300"
    translate-trt evaluate --metric evalb --reference "$out/data/$split.trees.txt" \
        --source "$out/data/$split.source.txt" --device "${DEVICE:-auto}" "$out/run/checkpoint-best"
done
