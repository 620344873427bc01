#!/usr/bin/env bash
# Trains, exports, verifies and runs a model from scratch, in under ten minutes on two CPU cores.
#
#   bash scripts/quickstart.sh                    on a generated English-German corpus
#   bash scripts/quickstart.sh --data DIR         on your own text: DIR/train.en train.de valid.* test.*
#       [--pair en-de] [--config tiny]            its languages, and a preset of translate-trt train
#       [--out DIR]                               output directory (default: quickstart/)
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

data='' pair=en-de config=tiny out=$root/quickstart sentence=''
while [ $# -gt 0 ]; do
    case $1 in
        --data | --pair | --config | --out)
            [ $# -ge 2 ] || { echo "$1 needs a value; see the head of $0" >&2; exit 2; }
            declare "${1#--}=$2"
            shift 2
            ;;
        *) echo "unknown option $1; see the head of $0" >&2; exit 2 ;;
    esac
done
source_language=${pair%-*} target_language=${pair#*-}

make_environment cpu,export
make_libraries "Continuing without them: bundles run all the same, only slower." ||
    say "The compiled libraries do not build here; continuing without them"

if [ -z "$data" ]; then
    say "generating an English-German corpus"
    data=$out/data sentence='Two men are working.'
    python scripts/generate_corpus.py --out "$data" --force
fi
for part in train valid test; do
    for language in "$source_language" "$target_language"; do
        [ -f "$data/$part.$language" ] || { echo "$data/$part.$language is missing" >&2; exit 1; }
    done
done

mkdir -p "$out"
say "training ($config)"
again=()
if [ -e "$out/run/run.json" ]; then
    # Never overwrite a run that may have taken days; a finished run ends at once.
    say "$out/run exists: resuming it (--out names another directory)"
    again=(--resume)
fi
translate-trt train --config "$config" --output "$out/run" "${again[@]}" \
    --train "$data/train.$source_language" "$data/train.$target_language" \
    --valid "$data/valid.$source_language" "$data/valid.$target_language"
[ -d "$out/run/checkpoint-averaged" ] || exit 1  # stopped by SIGTERM

say "exporting"
translate-trt export "$out/run" --output "$out/bundle" --force \
    --target onnx-fp32 --target onnx-int8 --attention

say "verifying on held-out sentences"
# The table is printed at the end; a target that fails its gate stops the script here.
translate-trt --verbose verify "$out/bundle" --checkpoint "$out/run" \
    --source "$data/test.$source_language" --reference "$data/test.$target_language" \
    >"$out/verify.txt" || { cat "$out/verify.txt"; exit 1; }

say "translating"
{ [ -z "$sentence" ] || echo "$sentence"; head -n 5 "$data/test.$source_language"; } >"$out/sample.$source_language"
translate-trt translate --bundle "$out/bundle" "$out/sample.$source_language" |
    paste -d '\n' "$out/sample.$source_language" - | sed 'n;s/^/    /'

say "BLEU and speed per target"
cat "$out/verify.txt"
cat <<EOF

Your bundle is $out/bundle. Try it:
    echo "${sentence:-...}" | $(command -v translate-trt) translate --bundle $out/bundle
EOF
