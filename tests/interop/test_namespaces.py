"""Workers on hosts of a network, here namespaces: `netreduce switch` sums their rings.

It stands between their links, as a bridge, or beside them on one interface, and routes.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.namespaces import CONTROL_PORT, SWITCH_IP, TOKEN, Network, host_ip, host_ip6
from tests.interop.judge import require_well_formed
from tests.interop.namespaces import require_root

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

HOSTS = 4
ALL_REDUCE = """
import numpy as np
from netreduce import Communicator
with Communicator.connect(timeout_s=60) as world:
    for size in (1, 1000, 300_000):
        array = np.arange(size, dtype=np.float32) + world.rank
        world.all_reduce(array)
        assert (array == 4 * np.arange(size, dtype=np.float32) + 6).all()
    world.barrier()
"""
DDP = """
import torch, torch.distributed as dist
dist.init_process_group("netreduce")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 100))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimiser.zero_grad()
    model(torch.randn(8, 300)).square().mean().backward()
    optimiser.step()
weights = [torch.empty(100, 300) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.detach())
assert all(torch.equal(weight, weights[0]) for weight in weights)
dist.destroy_process_group()
print("SAME", flush=True)
"""

TELL_HOPS = """
import socket, sys
v4 = sys.argv[1] == "4"
level, ask, kind = (0, 12, 2) if v4 else (41, 51, 52)  # IP_RECVTTL, IP_TTL; IPV6_RECVHOPLIMIT, IPV6_HOPLIMIT
with socket.socket(socket.AF_INET if v4 else socket.AF_INET6, socket.SOCK_DGRAM) as s:
    s.setsockopt(level, ask, 1)
    s.bind(("", 5000))
    s.settimeout(60)
    [(_, found, value)] = s.recvmsg(100, 100)[1]
    print(int.from_bytes(value, "little"))
"""
KEEP_SENDING = """
import socket, sys, time
with socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM) as s:
    while True:  # a router loses the first while it asks for the next hop
        s.sendto(b"x", (sys.argv[1], 5000))
        time.sleep(0.1)
"""


@pytest.fixture(scope="module", params=["bridge", "route"])
def network(request):
    require_root()
    network = Network(HOSTS, request.param)
    yield network
    network.close()


@pytest.fixture(scope="module")
def switch(network, tmp_path_factory):
    directory = tmp_path_factory.mktemp("switch")
    directory.chmod(0o755)
    pcap = directory / "network.pcapng"
    process = network.start_switch(directory, f'path-mtu = 4096\nuser = "nobody"\npcap = "{pcap}"')
    process.pcap = pcap
    yield process
    if process.poll() is None:
        process.kill()
        process.communicate()


def ask(network: Network, command: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """A question to the switch from host 0."""
    words = ["ip", "netns", "exec", network.hosts[0], sys.executable, "-m", "netreduce", *command.split()]
    return subprocess.run(
        [*words, f"{SWITCH_IP}:{CONTROL_PORT}"], env=os.environ | {"NETREDUCE_TOKEN": token}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip


def test_workers_on_four_hosts_all_reduce_through_the_switch_between_them(network, switch):
    network.on_all_hosts([sys.executable, "-c", ALL_REDUCE], 120)
    statistics = json.loads(ask(network, "stats --json").stdout)
    assert statistics["counters"]["messages_aggregated"] > 2
    assert statistics["counters"].get("drop_bad_icrc", 0) == 0
    assert statistics["workers"]["sent_pkts"] > 0
    assert ask(network, "rings").stdout == "no rings\n"


def test_hosts_reach_each_other_through_the_switch(network, switch):
    """A router's packets have one hop less, a bridge leaves them alone."""
    for version, address in ((4, host_ip(1)), (6, host_ip6(1))):
        receiver = network.start(network.hosts[1], [sys.executable, "-c", TELL_HOPS, str(version)])
        sender = network.start(network.hosts[0], [sys.executable, "-c", KEEP_SENDING, address])
        output, _ = receiver.communicate(timeout=90)
        sender.kill()
        sender.communicate()
        assert output == f"{63 if network.mode == 'route' else 64}\n"


def test_torchrun_trains_on_four_hosts(network, switch, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(DDP)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(HOSTS), "--nproc-per-node", "1"]
    torchrun += ["--node-rank", "{rank}", "--master-addr", "10.80.0.1", "--master-port", "29511", str(script)]
    outputs = network.on_all_hosts(torchrun, 150, GLOO_SOCKET_IFNAME="eth0")
    assert all("SAME" in output for output in outputs)


def test_who_does_not_know_the_token_is_turned_away(network, switch):
    answer = ask(network, "stats", token="0123456789abcdef0124")
    assert answer.returncode == 1
    assert "wrong token" in answer.stderr


def test_the_switch_drains_on_sigterm_and_what_it_saw_is_well_formed(network, switch):
    """The last test: the switch's capture of all before it is judged."""
    status = Path(f"/proc/{switch.pid}/status").read_text()  # `ip netns exec` has become the switch
    assert f"Uid:\t{pwd.getpwnam('nobody').pw_uid}\t" in status
    switch.send_signal(signal.SIGTERM)
    output, _ = switch.communicate(timeout=60)
    assert switch.returncode == 0
    assert "switch has ended" in output
    over_ipv4, _ = require_well_formed(switch.pcap)
    assert over_ipv4 > 500
