# Sourced by the scripts that distill: students of three sizes, each with and without SSRU.

# shellcheck shell=bash

# DeepNet's first weights: by Xavier's, six encoder layers learn hardly anything in some thousand steps.
students=()
for mixer in ssru self-attention; do
    tiny=student-tiny,initialization=deepnet,decoder-mixer=$mixer
    students+=(--student "$tiny" --student "$tiny,encoder-layers=3"
        --student "$tiny,encoder-layers=3,d-model=128,d-ff=512,heads=4")
done
