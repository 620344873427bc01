#!/usr/bin/env bash
# Sets up .venv on a fresh machine, builds the compiled kernels where there is a compiler, then runs
# every check: lint, format, types, tests.
# Arguments go to pytest, for example: bash scripts/test.sh -m 'not slow' tests/runtime
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
make_environment dev
make_kernels "Tests of compiled kernels will be skipped."

say "ruff"
ruff check .
ruff format --check .

say "mypy"
bash scripts/typecheck.sh

say "pytest"
# Two processes; tests of a file share what they build. -n 0 among the arguments: one, as with --pdb.
python -m pytest --durations=20 -n 2 --dist loadfile "$@"
