#!/usr/bin/env bash
# Sets up .venv on a fresh machine, builds the compiled libraries where there is a compiler, then runs
# every check: scripts/lint.sh, then the tests.
#
#   bash scripts/test.sh [--tests-only] [--quick] [arguments of pytest]
#
# --tests-only leaves out scripts/lint.sh. --quick leaves out the tests that are marked slow, and takes
# a few minutes on two cores once the environment is there.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
lint=true tests=()
if [ "${1:-}" = --tests-only ]; then
    shift
    lint=false
fi
if [ "${1:-}" = --quick ]; then
    shift
    tests=(-m "not slow")
fi
make_environment dev
make_libraries "Tests of compiled libraries will be skipped."

if "$lint"; then bash scripts/lint.sh; fi

say "pytest"
# Three processes on two cores, since tests of servers and clusters often wait. Tests of one file share their
# fixtures, so files are not split; tests/support/collection.py puts the longest files first. Pass -n 0 to run
# in one process, for example with --pdb.
python -m pytest --durations=20 -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 1 --run-limit 60 ${tests[@]+"${tests[@]}"} "$@"  # bash 3.2 calls an empty array unset
