#!/usr/bin/env bash
# Runs mypy --strict over the three packages. pyproject.toml maps them into the namespace `translate_trt`, which
# type checkers do not see; a directory of symbolic links gives them that layout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .cache/typecheck/translate_trt
for folder in train export runtime; do
    ln -sfn "$PWD/$folder" ".cache/typecheck/translate_trt/$folder"
done
MYPYPATH=.cache/typecheck exec mypy \
    -p translate_trt.runtime -p translate_trt.export -p translate_trt.train "$@"
