#!/usr/bin/env bash
# Trains a WMT14 model of the paper on all GPUs of this machine and scores it on newstest2014.
#
#   bash scripts/train_wmt14.sh en-de|en-fr base|big OUT [DATA]
#
# DATA (default: OUT/data) is prepared if it does not exist, which downloads 1.7 GB (en-de) or 6.6 GB
# (en-fr). A step takes 25,000 source and target tokens on any number of GPUs. A second run resumes
# from the last checkpoint. On several machines with a shared file system, run the same command with
# the same environment on each of them:
#   NODES        number of machines, or a range such as 1:4 that may change while training (default 1)
#   RENDEZVOUS   HOST:PORT of one machine
#   GPUS         processes per machine (default: all its GPUs)
#   OPTIONS      more flags for `translate-trt train`, for example for the paper's mixture of
#                lengths on one GPU (docs/train.md): --micro-batch-tokens 3125
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[ $# -ge 3 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
pair=$1 preset=$2 out=$(realpath -m "$3") data=$(realpath -m "${4:-$3/data}")
make_environment train

[ -e "$data/data.json" ] || {
    say "preparing $data"
    translate-trt data prepare "wmt14-$pair" --output "$data"
}

say "training $preset on $pair"
launch=(--nproc-per-node "${GPUS:-gpu}" --max-restarts 100)
if [ -n "${RENDEZVOUS:-}" ]; then
    launch+=(--nnodes "${NODES:-1}" --rdzv-backend c10d --rdzv-id translate-trt
        --rdzv-endpoint "$RENDEZVOUS")
else
    launch+=(--standalone)
fi
# A restarted group must not find the addresses of the previous one (seen with torch 2.13).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# shellcheck disable=SC2086  # OPTIONS is a list of words
torchrun "${launch[@]}" --no-python translate-trt train --config "$preset" --data "$data" \
    --output "$out/run" --resume ${OPTIONS:-}
[ -e "$out/run/checkpoint-averaged" ] || { say "stopped; run it again to resume"; exit 0; }

say "newstest2014, beam 4, alpha 0.6"
translate-trt evaluate --reference "$data/test.target.txt" --source "$data/test.source.txt" \
    --bleu-language "${pair#*-}" "$out/run"
