#!/usr/bin/env bash
# Sets up .venv on a fresh machine, builds the compiled libraries where there is a compiler, then runs
# every check: scripts/lint.sh, then the tests.
#
#   bash scripts/test.sh [--tests-only] [--quick | --nightly] [arguments of pytest]
#
# --tests-only leaves out scripts/lint.sh. Tests are marked with their tier (pyproject.toml): --quick leaves
# out those marked slow and takes a few minutes once the environment is there; --nightly adds the builds with
# sanitizers, clusters and other toolkits, which the default leaves out.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
lint=true tier="not nightly" extra=dev
while [ $# -gt 0 ]; do
    case $1 in
        --tests-only) lint=false ;;
        --quick) tier="not slow and not nightly" ;;
        --nightly) tier="" extra=nightly ;;
        *) break ;;
    esac
    shift
done
# A nightly test may build the whole library with sanitizers first.
[ -n "$tier" ] || set -- -o faulthandler_timeout=2400 "$@"

# Installs Debian's Chromium, in which the web page is tested, where that takes no password. The tests skip
# without one, and say so.
make_browser() {
    ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    say "installing chromium"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq update && apt-get -qq install --no-install-recommends chromium; } >/dev/null 2>&1 ||
        echo "chromium does not install here; tests of the web page will be skipped" >&2
}

# Compilers, pip and the network take turns at waiting for one another.
make_libraries "Tests of compiled libraries will be skipped." &
libraries=$!
make_browser &
trap 'wait' EXIT
make_environment "$extra"
wait "$libraries"
wait
trap - EXIT

# The checks take one processor for some minutes. What they print follows the tests.
checks=
if "$lint"; then
    printed=$(mktemp)
    bash scripts/lint.sh >"$printed" 2>&1 &
    checks=$!
    trap 'kill "$checks" 2>/dev/null || true; rm -f "$printed"' EXIT
fi

say "pytest"
# Three processes on two cores, since tests of servers often wait. Pass -n 0 to run in one process, for
# example with --pdb.
status=0
python -m pytest --durations=20 -n 3 --dist worksteal --max-worker-restart 1 -m "$tier" "$@" ||
    status=$?
if [ -n "$checks" ]; then
    wait "$checks" || status=1
    cat "$printed" >&2
fi
exit "$status"
