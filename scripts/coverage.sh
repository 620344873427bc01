#!/usr/bin/env bash
# Measures which lines and branches of train/, export/ and runtime/ the quick tests run, processes that
# they start included. Prints a table in Markdown; build/coverage/html has every file.
#
#   bash scripts/coverage.sh [arguments of pytest]
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
make_environment dev
make_libraries "Tests of compiled libraries will be skipped."

say "pytest under coverage"
export COVERAGE_FILE=$root/build/coverage/data
mkdir -p build/coverage
coverage erase
coverage run -m pytest -n 3 --dist worksteal --max-worker-restart 1 -m "not slow and not nightly" "$@" >&2
coverage combine --quiet
coverage html --quiet
coverage report --format=markdown
say "$root/build/coverage/html/index.html"
