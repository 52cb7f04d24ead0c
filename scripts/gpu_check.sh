#!/usr/bin/env bash
# One command on a bare GPU machine: equivalence tests, then benchmarks with random weights.
#   scripts/gpu_check.sh [--cpu] [--budget-s 330] [--out FOLDER]
# Needs Python, torch and transformers there, and wheels/ from scripts/make_wheels.sh; no network.
# --cpu: a rehearsal on tiny shapes. What it prints and saves: docs/gpu.md.
set -euo pipefail
SECONDS=0
root="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-python3}"
budget=330
arguments=()
while [ $# -gt 0 ]; do
    case "$1" in
        --budget-s) budget="${2:?--budget-s needs seconds}"; shift 2 ;;
        --out) arguments+=(--out "${2:?--out needs a folder}"); shift 2 ;;
        --cpu) arguments+=(--cpu); shift ;;
        *) echo "error: $1 is unknown: give --cpu, --budget-s SECONDS or --out FOLDER" >&2; exit 2 ;;
    esac
done
if [ ! -f "$root/wheels/requirements.txt" ]; then
    echo "error: $root/wheels is not there: run scripts/make_wheels.sh where there is a network" >&2
    exit 2
fi
environment="$root/.venv-gpu"
"$python" -m venv --clear --without-pip --system-site-packages "$environment"
# Where Python itself lies in an environment, that one's packages are no system's.
"$python" -c 'import site; print("\n".join(site.getsitepackages()))' \
    >"$(echo "$environment"/lib/python*/site-packages)/parent.pth"
# The machine's own pip serves; where it has none, Python brings one.
"$environment/bin/python" -m pip --version >/dev/null 2>&1 || "$environment/bin/python" -m ensurepip
"$environment/bin/python" -m pip install --quiet --no-index --find-links "$root/wheels" --no-deps \
    --ignore-installed --requirement "$root/wheels/requirements.txt"
"$environment/bin/python" -c '
import sys, torch, transformers
print("Python", sys.version.split()[0], "torch", torch.__version__, "CUDA", torch.version.cuda,
      "transformers", transformers.__version__, file=sys.stderr)'
if command -v nvidia-smi >/dev/null; then nvidia-smi >&2; else echo "no nvidia-smi here" >&2; fi
echo "ready after $SECONDS s" >&2
# In place of this shell: signals go to it.
PYTHONPATH="$root/src" exec "$environment/bin/python" "$root/scripts/gpu_check.py" \
    --budget-s $((budget - SECONDS)) ${arguments[@]+"${arguments[@]}"}
