#!/usr/bin/env bash
# Fills wheels/ with what scripts/gpu_check.sh needs beside Python, torch and transformers:
#   scripts/make_wheels.sh [version of Python on that machine, default 3.12]
# Needs a network. Versions are those of constraints.txt; machine: x86-64 Linux.
set -euo pipefail
cd "$(dirname "$0")/.."
version="${1:-3.12}"
python="${PYTHON:-python3}"
# What the check imports, with what that needs; transformers brings the rest. No resolver runs:
# torch and transformers must stay as they are there.
packages=(
    hydra-core omegaconf gguf
    pytest iniconfig pluggy Pygments
    matplotlib contourpy cycler fonttools kiwisolver pillow pyparsing python-dateutil tzdata
)
# Released as source alone: built here, pure Python.
built=(antlr4-python3-runtime)
rm -rf wheels
mkdir wheels
pinned() { # package: its line of constraints.txt
    grep -i "^$1==" constraints.txt || { echo "error: $1 is not in constraints.txt" >&2; exit 1; }
}
for package in "${packages[@]}"; do pinned "$package"; done >wheels/downloaded.txt
for package in "${built[@]}"; do pinned "$package"; done >wheels/built.txt
"$python" -m pip download --quiet --no-deps --dest wheels --only-binary :all: \
    --python-version "$version" --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --requirement wheels/downloaded.txt
"$python" -m pip wheel --quiet --no-deps --wheel-dir wheels --requirement wheels/built.txt
cat wheels/downloaded.txt wheels/built.txt >wheels/requirements.txt
rm wheels/downloaded.txt wheels/built.txt
echo "wheels/ for Python $version: $(find wheels -name '*.whl' | wc -l) wheels, $(du -sh wheels | cut -f1)"
