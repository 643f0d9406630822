#!/bin/sh
# Two hosts and a switch on one machine, each in a network namespace of its own:
#
#     nr-a 10.0.1.1 --- 10.0.1.254 nr-switch 10.0.2.254 --- nr-b 10.0.2.1
#
# The hosts' routes point at the switch, which forwards what they send, and adds their gradients. Run it in a checkout
# after `make demo` or `pip install -e .`, as root: sudo sh examples/two_hosts.sh
set -eu
python=${PYTHON:-$(pwd)/.venv/bin/python}
work=$(mktemp -d)
chmod 755 "$work"
end() {
    kill "$switch" 2>/dev/null && wait "$switch" || true
    for name in nr-a nr-b nr-switch; do ip netns del "$name"; done 2>/dev/null || true
    rm -r "$work"
}
switch=
trap end EXIT

for name in nr-a nr-b nr-switch; do
    ip netns del "$name" 2>/dev/null || true # a run that was killed has left it
    ip netns add "$name"
    ip -n "$name" link set lo up
done
for host in a:1 b:2; do
    name=${host%:*} network=10.0.${host#*:}
    ip link add eth0 mtu 4300 netns "nr-$name" type veth peer name "to-$name" mtu 4300 netns nr-switch
    ip -n nr-switch addr add "$network.254/24" dev "to-$name"
    ip -n nr-switch link set "to-$name" up
    ip -n "nr-$name" addr add "$network.1/24" dev eth0
    ip -n "nr-$name" link set eth0 up
    ip -n "nr-$name" route add default via "$network.254"
done

head -c 24 /dev/urandom | base64 >"$work/token"
cat >"$work/fabric.toml" <<END
mode = "route"
listen = "10.0.1.254:4792"
token-file = "$work/token"
path-mtu = 4096
[[port]]
interface = "to-a"
[[port]]
interface = "to-b"
END
ip netns exec nr-switch "$python" -m netreduce switch -v -c "$work/fabric.toml" 2>"$work/log" &
switch=$!
until grep -q "is ready" "$work/log"; do
    kill -0 "$switch" 2>/dev/null || { cat "$work/log"; exit 1; }
    sleep 0.2
done

export NETREDUCE_SWITCH=10.0.1.254:4792 NETREDUCE_TOKEN="$(cat "$work/token")" WORLD_SIZE=2
sum='
import numpy as np, netreduce
with netreduce.Communicator.connect() as world:
    gradient = np.full(1_000_000, world.rank + 1, np.float32)
    world.all_reduce(gradient)
    print(f"rank {world.rank}: 1 + 2 = {gradient.min():g}", flush=True)
'
RANK=1 ip netns exec nr-b "$python" -c "$sum" &
RANK=0 ip netns exec nr-a "$python" -c "$sum"
wait $!
ip netns exec nr-a "$python" -m netreduce stats | grep -E "packets_spliced|messages_aggregated|packets_in" | head -4
