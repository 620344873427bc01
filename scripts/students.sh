# Sourced by the scripts that distill: students of three sizes, each with and without SSRU.

# shellcheck shell=bash

# DeepNet's initial weights: with Xavier's, six encoder layers learn hardly anything in some thousand steps.
students=()
for mixer in ssru self-attention; do
    tiny=student-tiny,decoder-mixer=$mixer
    students+=(--student "$tiny,initialization=deepnet" --student "$tiny,encoder-layers=3,initialization=deepnet"
        --student "$tiny,encoder-layers=3,initialization=deepnet,d-model=128,d-ff=512,heads=4")
done
