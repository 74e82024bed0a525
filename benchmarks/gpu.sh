#!/usr/bin/env bash
# Runs the tests marked `gpu` and the benchmarks on a machine with a CUDA device, within nine minutes,
# and writes what they print to benchmarks/RESULTS_GPU.md. Without such a device it writes nothing.
#
#     benchmarks/gpu.sh [PYTHON]
#
# PYTHON (by default python3) is that of a virtual environment with a PyTorch for the machine's CUDA.
# What it lacks of Gymnast's `[test]`, TRL and Liger is installed there, and the optimisation step
# downloads SmolLM2: both need a package registry. Without one, install Gymnast and its `[test]`
# beforehand. What does not install or run is told on the page.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || {
    echo "gpu.sh: $python sees no CUDA device through PyTorch; nothing was measured" >&2
    exit 1
}

began=$SECONDS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
page=$work/page.md
failed=0

# Most seconds for a part, and never beyond nine minutes in all.
within() {
    local left=$((525 - SECONDS + began))
    timeout --kill-after=10 "$(($1 < left ? $1 : (left > 1 ? left : 1)))" "${@:2}"
}

if ! "$python" -c 'import gymnast, hypothesis, pytest' 2>/dev/null; then
    within 120 "$python" -m pip install -q -e '.[test]' || {
        echo "gpu.sh: Gymnast and its test tools are not installed and could not be" >&2
        exit 1
    }
fi
has() { "$python" -c "import $1" 2>/dev/null; }
has trl || within 60 "$python" -m pip install -q 'trl==1.16.0' 2>/dev/null
has liger_kernel || within 30 "$python" -m pip install -q liger-kernel 2>/dev/null

# part TITLE SECONDS COMMAND...: what it prints goes to the page, and whether it ended well.
part() {
    local title=$1 limit=$2
    shift 2
    {
        echo "## $title"
        echo
        echo "\`${*/#$python/python}\`"
        echo
        echo '```text'
    } >>"$page"
    within "$limit" "$@" >"$work/out" 2>"$work/err"
    local code=$?
    tail -n 60 "$work/out" >>"$page"
    echo '```' >>"$page"
    if [ "$code" -ne 0 ]; then
        failed=1
        {
            echo
            if [ "$code" -eq 124 ]; then echo "Stopped after its time."; else echo "Failed ($code):"; fi
            echo
            echo '```text'
            tail -n 15 "$work/err"
            echo '```'
        } >>"$page"
    fi
    echo >>"$page"
}

{
    echo "# Results on a GPU"
    echo
    echo "Written by \`benchmarks/gpu.sh\`, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
    "$python" -c '
import torch
device = torch.cuda.get_device_properties(0)
print(f"{device.name}, {device.total_memory / 2**30:.0f} GiB, PyTorch {torch.__version__}.")'
    echo
} >"$page"

part "Tests" 200 "$python" -m pytest -q -m gpu -p no:cacheprovider -p no:benchmark
part "Sampling, beside generate" 100 "$python" benchmarks/rollout.py --device cuda --only decode growth
step=(benchmarks/train_step.py --device cuda --only equal --groups 1)
if has trl; then
    part "One optimisation step, beside TRL" 80 "$python" "${step[@]}"
    if has liger_kernel; then
        part "The same, TRL with Liger" 80 "$python" "${step[@]}" --liger
    else
        printf '## The same, TRL with Liger\n\nLiger did not install.\n\n' >>"$page"
    fi
else
    printf '## One optimisation step, beside TRL\n\nTRL did not install.\n\n' >>"$page"
fi
part "A training run, end to end" 60 "$python" -m gymnast train examples/tiny.yaml "output_dir=$work/run"

cp "$page" benchmarks/RESULTS_GPU.md
echo "gpu.sh: wrote benchmarks/RESULTS_GPU.md in $((SECONDS - began)) s"
exit "$failed"
