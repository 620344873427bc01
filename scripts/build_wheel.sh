#!/usr/bin/env bash
# Builds a wheel with the compiled kernels inside, for systems like this one, into dist/ (or OUT):
#
#   bash scripts/build_wheel.sh [OUT]
#
# Without the kernels it is no error to build one: `pip wheel --no-deps .` makes a wheel for any
# system, as long as runtime/kernels/ holds no library.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

out=$(realpath -m "${1:-$root/dist}")
make_environment dev
bash scripts/build_kernels.sh
rm -rf build/lib build/bdist.*  # setuptools would take along what an earlier build left there
python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$out" .
ls "$out"/translate_trt-*.whl
