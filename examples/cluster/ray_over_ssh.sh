#!/bin/bash
# A run on this machine whose episodes are played on others:
#
#     bash ray_over_ssh.sh 10.0.0.1 "10.0.0.2 10.0.0.3" train run.yaml rollouts.workers=8
#
# The first address is this machine's, in a network that all can reach and nobody else. The others
# have the same virtual environment at the same path.
set -euom pipefail # -m: each child is a process group of its own, which is ended whole
address=$1 hosts=$2
shift 2

umask 077
token=$(mktemp)
python -c 'import secrets; print(secrets.token_hex(32), end="")' > "$token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token"
ray=$(command -v ray)

end() {
    for child in $(jobs -p | tac); do # the head last: the others tell it that they leave
        kill -- "-$child" 2> /dev/null || true
        wait "$child" || true
    done
    rm -f "$token"
}
trap end EXIT

"$ray" start --head --node-ip-address="$address" --port=6379 --num-cpus=0 \
    --include-dashboard=false --disable-usage-stats --block &
until (exec 3<> "/dev/tcp/$address/6379") 2> /dev/null; do sleep 1; done
for host in $hosts; do
    # The token goes by standard input: arguments can be read by every user of a machine. A node
    # ends with its connection, because its standard input does.
    { cat "$token"; echo; sleep infinity; } | ssh "$host" "
        read -r RAY_AUTH_TOKEN; export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
        '$ray' start --address='$address:6379' --disable-usage-stats --block & node=\$!
        cat > /dev/null; kill \$node; wait" &
done
gymnast "$@" rollouts.backend=ray rollouts.address="$address:6379"
