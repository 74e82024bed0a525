#!/usr/bin/env bash
# Gets a Debian machine without a registry ready for the tests marked `docker`: installs an engine
# where there is none, starts it where it does not answer, and makes two images from packages of the
# distribution: one with Python, one without. Run it again at any time: what is there is left as it is.
#
#   tests/sandboxes/start_engine.sh         prints the settings for the tests on its last line
#   tests/sandboxes/start_engine.sh stop    stops the engine that this script has started
set -euo pipefail

image=${GYMNAST_SANDBOX_IMAGE:-gymnast-base:debian}
bare_image=gymnast-base:busybox
state=${GYMNAST_ENGINE_STATE:-/var/tmp/gymnast-engine}
packages=(python3 dash coreutils grep sed findutils procps)
export DEBIAN_FRONTEND=noninteractive
mkdir -p "$state"

answers() { command -v docker >/dev/null && timeout 5 docker version >/dev/null 2>&1; }

install_engine() {
    command -v dockerd >/dev/null && return
    local install=(apt-get install -y -qq --no-install-recommends docker.io iptables)
    "${install[@]}" >"$state/apt.log" 2>&1 \
        || { apt-get update -qq && "${install[@]}"; } >>"$state/apt.log" 2>&1 \
        || { tail "$state/apt.log"; exit 1; }
}

start_engine() {
    # The second try is for machines that may not change their network.
    for flags in "" "--iptables=false --ip6tables=false --ip-masq=false --bridge=none"; do
        # shellcheck disable=SC2086  # the flags are words
        setsid nohup dockerd $flags >"$state/dockerd.log" 2>&1 </dev/null 9>&- &
        local engine=$!
        for _ in $(seq 300); do
            if answers; then
                echo "$engine" >"$state/pid"
                return
            fi
            kill -0 "$engine" 2>/dev/null || break
            sleep 0.1
        done
        kill "$engine" 2>/dev/null || true
    done
    tail "$state/dockerd.log"
    exit 1
}

stop_engine() {
    local engine
    engine=$(cat "$state/pid" 2>/dev/null) || return 0
    [ "$(cat "/proc/$engine/comm" 2>/dev/null)" = dockerd ] && kill "$engine"
    rm -f "$state/pid"
}

# Every package that the named ones need, without those that only an installation needs.
closure() {
    apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
        --no-replaces --no-enhances "${packages[@]}" \
        | grep -E '^[a-z0-9]' | grep -vE ':|^(debconf|cdebconf|dpkg|perl|mailcap|media-types)' \
        | sort -u
}

make_image() {
    local build debs root
    build=$(mktemp -d "$state/build.XXXXXX")
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$build'" EXIT
    debs=$build/debs root=$build/root
    mkdir -p "$debs" "$root"/usr/{bin,sbin,lib,lib64} "$root"/{etc,tmp,proc,sys,dev,work}
    for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$root/$folder"; done

    local wanted
    mapfile -t wanted < <(closure)
    [ "${#wanted[@]}" -gt "${#packages[@]}" ] || { apt-get update -qq; mapfile -t wanted < <(closure); }
    (cd "$debs" && apt-get download -qq -o APT::Sandbox::User=root "${wanted[@]}") >/dev/null
    for deb in "$debs"/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink \
            --exclude './usr/share/doc/*' --exclude './usr/share/man/*' \
            --exclude './usr/share/locale/*'
    done
    ln -sf dash "$root/usr/bin/sh"
    ln -sf python3 "$root/usr/bin/python"
    printf 'root:x:0:0::/:/bin/sh\nsandbox:x:1000:1000::/work:/bin/sh\n' >"$root/etc/passwd"
    printf 'root:x:0:\nsandbox:x:1000:\n' >"$root/etc/group"
    ldconfig -r "$root"
    # A read-only root cannot keep compiled modules later on.
    chroot "$root" /usr/bin/python3 -I -m compileall -q --invalidation-mode unchecked-hash \
        /usr/lib/python3* >/dev/null 2>&1 || true
    tar -C "$root" --numeric-owner --owner 0 --group 0 -c . \
        | docker import -c 'ENV PATH=/usr/bin:/usr/sbin' - "$image" >/dev/null
}

# Commands without Python or a C library of their own.
make_bare_image() {
    local build command
    build=$(mktemp -d "$state/build.XXXXXX")
    (cd "$build" && apt-get download -qq -o APT::Sandbox::User=root busybox-static) >/dev/null
    dpkg-deb -x "$build"/*.deb "$build/package"
    mkdir -p "$build"/root/{bin,tmp}
    cp "$build/package/bin/busybox" "$build/root/bin/"
    for command in sh ls cat id sleep; do ln -s busybox "$build/root/bin/$command"; done
    tar -C "$build/root" --numeric-owner --owner 0 --group 0 -c . \
        | docker import -c 'ENV PATH=/bin' - "$bare_image" >/dev/null
    rm -rf "$build"
}

if [ "${1:-}" = stop ]; then
    stop_engine
    exit
fi
exec 9>"$state/lock"
flock 9 # of two callers at once, the second finds all done
install_engine
answers || start_engine
docker image inspect "$image" >/dev/null 2>&1 || make_image
docker image inspect "$bare_image" >/dev/null 2>&1 || make_bare_image
echo "GYMNAST_SANDBOX_IMAGE=$image DOCKER_HOST=${DOCKER_HOST:-unix:///var/run/docker.sock}"
