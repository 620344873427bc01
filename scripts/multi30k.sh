#!/usr/bin/env bash
# Trains, exports and verifies English to German or French on Multi30k, task 1, on a CPU; the
# test set is test_2016_flickr.
#
#   bash scripts/multi30k.sh DATA [OUT] [de|fr]
#
# DATA holds train.en train.de val.en val.de test_2016_flickr.en test_2016_flickr.de: the raw files
# of github.com/multi30k/dataset (data/task1/raw, unpacked). Its images' terms of use allow research.
# docs/results.md has the results.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data=$1 out=${2:-$root/multi30k} language=${3:-de}
make_environment cpu,export,tensorrt-rtx

say "training"

translate-trt train --config small --output "$out/run" \
    --train "$data/train.en" "$data/train.$language" --valid "$data/val.en" "$data/val.$language"
[ -d "$out/run/checkpoint-averaged" ] || exit 1  # stopped by SIGTERM

say "learning the shortlist"
translate-trt shortlist --text "$data/train.en" "$data/train.$language" \
    --tokenizer "$out/run" --output "$out/shortlist.safetensors" \
    --coverage "$data/test_2016_flickr.en" "$data/test_2016_flickr.$language"

say "exporting"
targets=(onnx-fp32 onnx-int8 onnx-fp32-shortlist onnx-int8-shortlist onnx-fp16 tensorrt-rtx-fp32 tensorrt-rtx-fp16 tensorrt-rtx-bf16)
# No line reaches 64 tokens, and engine caches are allocated for the longest translation.
translate-trt export "$out/run" --output "$out/bundle" --max-source-length 64 \
    --shortlist "$out/shortlist.safetensors" "${targets[@]/#/--target=}"

say "verifying on test_2016_flickr"
translate-trt verify "$out/bundle" --checkpoint "$out/run" \
    --source "$data/test_2016_flickr.en" --reference "$data/test_2016_flickr.$language"

name=multi30k command="bash scripts/multi30k.sh DATA"
[ "$language" = de ] || { name=multi30k-$language; command+=" OUT $language"; }
python benchmarks/record.py run --name "$name" --run "$out/run" --bundle "$out/bundle" \
    --command "$command" --out "$out/result.json"
