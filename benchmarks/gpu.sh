#!/usr/bin/env bash
# Runs the tests marked `gpu` and measures sampling, training and a whole job on a machine with a CUDA
# device, within five minutes and without a network. Prints as it goes, one table at the end, and writes it
# to benchmarks/RESULTS_GPU.md, and into the folder $OUT if that is set.
#
#     benchmarks/gpu.sh                               all parts
#     benchmarks/gpu.sh --only sampling training      some of exactness, sampling, job, training, code, tests
#     benchmarks/gpu.sh --only code --seconds 330     a part to its end
#     benchmarks/gpu.sh --device cpu                  a trial of the script itself: tiny, writes nothing
#
# PYTHON (by default python3) is an interpreter with a PyTorch for the machine's CUDA. If `.gpu/wheels` is
# there (benchmarks/gpu_wheels.sh fills it elsewhere), what that interpreter lacks is installed from it into
# a virtual environment `.gpu/venv`, never from a network; otherwise Gymnast has to be installed already. The
# jobs train SmolLM2 if all parts of `.gpu/weights-*` are there, else the tiny model of examples/tiny.yaml.
exec "${PYTHON:-python3}" "$(dirname "$0")/gpu_run.py" "$@"
