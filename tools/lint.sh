#!/usr/bin/env bash
# make lint: formatting, tidy, cppcheck and clang-tidy over the C sources. Needs a configured release build.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release >/dev/null
generated=':!src/text/unicode_new.h' # its generator writes it compactly
mapfile -t files < <(git ls-files 'src/*.c' 'src/*.h' 'tests/*.c' 'tests/*.h' "$generated")
mapfile -t sources < <(git ls-files 'src/*.c')

echo "clang-format: ${#files[@]} files"
clang-format --dry-run -Werror "${files[@]}"
echo "tidy"
.venv/bin/python tools/tidy.py
echo "cppcheck: ${#sources[@]} files"
cppcheck -q -j "$(nproc)" --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=1 -I src \
    -D_GNU_SOURCE -DQUERN_VERSION='"0"' --suppress=missingIncludeSystem \
    --suppress=normalCheckLevelMaxBranches "${sources[@]}"
echo "clang-tidy: ${#sources[@]} files"
.venv/bin/python tools/clang_tidy.py
