#!/usr/bin/env bash
# mypy --strict over the three packages. They are mapped into the namespace `translate_trt` by
# pyproject.toml, which type checkers do not read; a folder of links shows them the same tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .cache/typecheck/translate_trt
for folder in train export runtime; do
    ln -sfn "$PWD/$folder" ".cache/typecheck/translate_trt/$folder"
done
MYPYPATH=.cache/typecheck exec mypy \
    -p translate_trt.runtime -p translate_trt.export -p translate_trt.train "$@"
