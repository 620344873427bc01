#!/usr/bin/env bash
# Builds the documentation site into build/site (or OUT); any warning fails it.
#
#   bash scripts/docs.sh [OUT]
#   bash scripts/docs.sh --serve      # on http://127.0.0.1:8000, rebuilt when a page changes
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
make_environment docs

# mkdocstrings reads the sources, and takes the namespace of the packages from folders.
mkdir -p .cache/docs/translate_trt
ln -sfn "$root/runtime" .cache/docs/translate_trt/runtime
if [ "${1:-}" = --serve ]; then
    exec mkdocs serve
fi
NO_MKDOCS_2_WARNING=1 mkdocs build --strict --site-dir "$(realpath -m "${1:-build/site}")"
say "${1:-$root/build/site}/index.html"
