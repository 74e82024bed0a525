#!/usr/bin/env bash
# A real OpenEnv, which serves environments for tests, in an environment of its own: it needs an older SDK
# of the Model Context Protocol than Gymnast's adapter of that. Prints its Python on the last line. The
# first call takes some minutes, later ones do nothing.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
home=${GYMNAST_OPENENV_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/gymnast/openenv-$(sha256sum "$here/openenv.lock" | cut -c1-12)}
mkdir -p "$home"
(   flock 9
    if [ ! -e "$home/READY" ]; then
        python3 -m venv --clear "$home/venv" >&2
        "$home/venv/bin/pip" install -q --no-deps -r "$here/openenv.lock" >&2
        touch "$home/READY"
    fi
) 9>"$home/lock"
echo "$home/venv/bin/python"
