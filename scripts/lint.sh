#!/usr/bin/env bash
# Runs every static check: Python, C++, shell, workflows, spelling and house terms.
#
#   bash scripts/lint.sh [--fix]
#
# --fix lets ruff and clang-format rewrite files. actionlint runs where it is installed.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

fix=false
case ${1:-} in
    "") ;;
    --fix) fix=true ;;
    *) echo "unknown option $1; see the head of $0" >&2; exit 2 ;;
esac
make_environment dev

# Files that exist and that git tracks or would track.
list_files() { # patterns
    git ls-files --cached --others --exclude-standard --deduplicate -- "$@" |
        while IFS= read -r file; do [ ! -f "$file" ] || printf '%s\n' "$file"; done
}
mapfile -t shell_files < <(list_files '*.sh' .ci/run)
mapfile -t native_files < <(list_files '*.cc' '*.h' '*.hpp' '*.c' '*.cu')
mapfile -t prose_files < <(list_files ':!benchmarks/results' ':!*.svg' ':!*.json')

failed=()
check() { # name, command
    local name=$1
    shift
    say "$name"
    "$@" >&2 || failed+=("$name")
}

if "$fix"; then
    check "ruff" ruff check --fix .
    check "ruff format" ruff format .
    check "clang-format" clang-format -i "${native_files[@]}"
else
    check "ruff" ruff check .
    check "ruff format" ruff format --check .
    check "clang-format" clang-format --dry-run -Werror "${native_files[@]}"
fi
check "mypy" bash scripts/typecheck.sh
check "shellcheck" shellcheck "${shell_files[@]}"
check "codespell" codespell "${prose_files[@]}"
check "house terms" python scripts/check_words.py
mapfile -t dockerfiles < <(list_files '*.Dockerfile')
mapfile -t yaml_files < <(list_files '*.yaml')
check "hadolint" hadolint "${dockerfiles[@]}"
check "yamllint" yamllint --strict -d '{extends: relaxed, rules: {line-length: {max: 120}}}' "${yaml_files[@]}"
if command -v actionlint >/dev/null; then
    check "actionlint" actionlint
else
    say "actionlint is not installed: the workflows of .github/ were not checked"
fi
if [ ${#failed[@]} -gt 0 ]; then
    printf '\nfailed:%s\n' "$(printf ' %s,' "${failed[@]}" | sed 's/,$//')" >&2
    exit 1
fi
