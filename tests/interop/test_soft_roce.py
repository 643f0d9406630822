"""The switch between endpoints that nobody here wrote: soft-RoCE devices of a stock Linux kernel in a QEMU guest.

One guest is booted for all tests; its devices are driven by plain pyverbs and by the tools of rdma-core and perftest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop.communicator_script import exercise
from tests.interop.guest import (
    HOST_IP,
    Guest,
    guest_gid,
    guest_ip,
    guest_ipv6,
    guest_mac,
    guest_table,
    guest_vlan_ip,
    guest_vlan_ipv6,
)
from tests.interop.hub import TOKEN, Hub
from tests.interop.image import missing_tools
from tests.interop.judge import captured, destination, require_well_formed, sender_lost_its_place
from tests.interop.nic_driver import PluggedNic, exchange
from tests.patience import eventually

import netreduce
from netreduce import Communicator
from netreduce.fabric.faults import Faults
from netreduce.fabric.rules import SeenFrame
from netreduce.wire.control import Endpoint, Geometry
from netreduce.wire.pcap import Direction

pytestmark = [pytest.mark.live, pytest.mark.timeout(200)]

RANKS = 4
SEED = 20230325
FLOAT32, UINT8 = 1, 6
TIMEOUT_QUIET, TIMEOUT_LOSSY = 19, 13
"""Exponents of a queue pair's retransmission timeout: 2.1 s never strikes by mistake; 34 ms makes losses cheap."""
HERE = Path(__file__).parent
PACKAGE = Path(netreduce.__file__).parent
SCRIPTS = ("verbs_common.py", "ring_script.py", "peer_script.py", "communicator_script.py", "errors_script.py")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    missing = missing_tools()
    if missing:
        reason = f"the guest needs {', '.join(missing)}: apt-get install qemu-system-x86 cpio binutils"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    print(f"seed {SEED}")
    hub = Hub(tmp_path_factory.mktemp("guest"), RANKS, SEED)
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def guest(hub):
    scripts = {name: (HERE / name).read_text() for name in SCRIPTS}
    scripts["tools.sh"] = TOOLS
    scripts |= {str(path.relative_to(PACKAGE.parent)): path.read_text() for path in PACKAGE.rglob("*.py")}
    guest = Guest(hub.sockets, hub.host_socket, scripts, setup=ROUTE_TO_CABLES)
    hub.start()
    guest.wait_until_ready()
    yield guest
    guest.close()


CABLE_HOSTS = range(2, 12)
ROUTE_TO_CABLES = (
    "/usr/bin/ip -batch - << END\n"
    + "".join(
        f"route add 10.78.0.0/16 dev eth{i} table {table}\n"
        + "".join(
            f"neigh add 10.78.0.{n} lladdr 02:4e:52:00:00:{n:02x} dev eth{i} nud permanent\n" for n in CABLE_HOSTS
        )
        for i, table in enumerate(map(guest_table, range(RANKS)))
    )
    + "END\n"
)
"""Our NIC at a cable answers no ARP: it learns addresses from the switch."""
TOOLS = """
gid() {
  cd /sys/class/infiniband/rxe$1/ports/1/gids
  grep -l ffff:0a00 *
}
ibv_rc_pingpong -d rxe2 -g $(gid 2) -m 1024 -n 30 -s 5000 > server.log 2>&1 & sleep 1
ibv_rc_pingpong -d rxe3 -g $(gid 3) -m 1024 -n 30 -s 5000 10.0.0.3
wait
ib_write_bw -d rxe1 -x $(gid 1) -m 4096 -F -s 50000 -n 20 > server.log 2>&1 & sleep 1
ib_write_bw -d rxe0 -x $(gid 0) -m 4096 -F -s 50000 -n 20 10.0.0.2
wait
rping -s -a 10.0.0.3 -C 10 -S 3000 -V > server.log 2>&1 & sleep 1
rping -c -a 10.0.0.3 -I 10.0.0.4 -C 10 -S 3000 -V && echo rping: all data right
wait
"""


def ring(
    guest: Guest, hub: Hub, addresses: Callable[[int], str] = guest_ip, beside: str = "", limit_s: float = 60, **choices
) -> Outcome:
    """All-reduce through the switch by a plain pyverbs script, while `beside` runs in the guest, too."""
    options = {
        "ranks": RANKS, "messages": 6, "window": 2, "path_mtu": 1024, "length": 4096, "dtype": FLOAT32, "ring_id": 7,
        "first_psn": 0xFFFFF0, "carrier": "send", "timeout": TIMEOUT_QUIET, "limit_s": limit_s,
        "gids": [guest_gid(addresses(r)) for r in range(RANKS)],
    } | choices  # fmt: skip
    packets = -(-(options["length"] + 16) // options["path_mtu"])
    geometry = Geometry(options["window"], packets, options["path_mtu"])
    endpoints: list[Endpoint] = []

    def register(line: str) -> str | None:
        if not line.startswith("ENDPOINTS "):
            return None
        pairs = enumerate(json.loads(line.split(" ", 1)[1]))
        endpoints.extend(Endpoint(r, addresses(r), guest_mac(r), *qpns, options["first_psn"]) for r, qpns in pairs)
        assert hub.observer.register(endpoints, geometry, options["ring_id"]) == options["ring_id"]
        return "go"

    command = f"{beside} python3.11 ring_script.py '{json.dumps(options)}'"
    try:
        lines = guest.run(command, limit_s + 30, register)
        (state,) = hub.observer.rings()
    finally:
        hub.observer.unregister(options["ring_id"])
    result = json.loads(next(line for line in lines if line.startswith("RESULT ")).removeprefix("RESULT "))
    return Outcome(result, state.counters, endpoints, lines)


class Outcome(NamedTuple):
    """What the ring's script says, the ring's counters at the switch, its endpoints, and all lines of output."""

    result: dict
    counters: dict[str, int]
    endpoints: list[Endpoint]
    lines: list[str]

    def trouble(self) -> list[dict[str, int]]:
        """What the devices counted that a clean run does not know."""
        return [{name: n for name, n in device.items() if name in TROUBLE} for device in self.result["counters"]]


TROUBLE = ("out_of_seq_request", "rcvd_seq_err", "completer_retry_err", "retry_exceeded_err", "duplicate_request",
           "rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err", "send_err")  # fmt: skip


@contextlib.contextmanager
def loss(faults: Iterable[Faults], probability: float) -> Iterator[None]:
    """RoCE packets get lost on these lines; ARP does not, whose repetition takes a second."""

    def is_roce(frame: SeenFrame) -> bool:
        return frame.packet is not None

    rules = [line.drop(probability=probability, where=is_roce) for line in faults]
    try:
        yield
    finally:
        for rule in rules:
            rule.remove()
    assert any(rule.struck for rule in rules)


@pytest.mark.parametrize("carrier", ["send", "write"])
@pytest.mark.parametrize(
    ("path_mtu", "length", "dtype"), [(1024, 20 * 1024 - 16 + 4, FLOAT32), (4096, 5 * 4096 - 16 - 2723, UINT8)]
)
def test_every_rank_gets_the_sum_and_no_device_notices_anything(guest, hub, carrier, path_mtu, length, dtype):
    """Lengths that fill no last packet and, in bytes, need three of padding; PSNs wrap within the first message."""
    outcome = ring(guest, hub, carrier=carrier, path_mtu=path_mtu, length=length, dtype=dtype)
    assert outcome.result["wrong"] == 0
    assert outcome.counters["messages_aggregated"] == 6
    assert not any(outcome.trouble())


@pytest.mark.parametrize("addresses", [guest_vlan_ip, guest_ipv6, guest_vlan_ipv6])
@pytest.mark.parametrize("carrier", ["send", "write"])
def test_a_ring_within_a_vlan_or_over_ipv6_is_summed_as_well(guest, hub, addresses, carrier):
    outcome = ring(guest, hub, addresses, carrier=carrier, length=3000)
    assert outcome.result["wrong"] == 0
    assert outcome.counters["messages_aggregated"] == 6
    assert not any(outcome.trouble())


def test_a_ring_recovers_from_losses_on_every_line(guest, hub):
    """One more try is granted when it was soft-RoCE that lost its place, from where it never comes back."""

    def run() -> Outcome:
        with loss([*hub.up, *hub.down], 0.01):
            return ring(guest, hub, messages=24, length=20 * 1024 - 16, timeout=TIMEOUT_LOSSY, limit_s=40)

    try:
        outcome = run()
    except AssertionError:
        if not sender_lost_its_place(hub.pcap):
            raise
        outcome = run()
    assert outcome.result["wrong"] == 0
    assert any(outcome.trouble())


def test_tools_of_others_run_beside_a_ring_and_their_frames_stay_as_they_are(guest, hub):
    before = len(captured(hub.pcap))
    outcome = ring(guest, hub, messages=300, length=3000, beside="(sh tools.sh > tools.log 2>&1; touch tools.done) &")
    text = "\n".join(guest.run("until [ -e tools.done ]; do sleep 1; done; cat tools.log", 60))
    assert outcome.result["wrong"] == 0
    assert "30 iters in" in text
    assert "rping: all data right" in text
    assert re.search(r"^ *50000 +20 ", text, re.MULTILINE)
    members = {(e.ip, qpn) for e in outcome.endpoints for qpn in (e.successor_qpn, e.predecessor_qpn)}

    def frames_of_others(since: int, direction: Direction) -> Counter[bytes]:
        seen = (frame for frame in captured(hub.pcap)[since:] if frame.direction == direction)
        return Counter(frame.data for frame in seen if destination(frame.data) not in members)

    # The guest sends of its own accord at any time: a frame may arrive before a part of the capture and leave in it.
    arrived = frames_of_others(before, Direction.INBOUND)
    assert sum(arrived.values()) > 300
    assert eventually(lambda: not arrived - frames_of_others(before, Direction.OUTBOUND)), "every frame left as it came"
    left = frames_of_others(before, Direction.OUTBOUND)
    assert not set(left) - set(frames_of_others(0, Direction.INBOUND)), "and none was made up"


@pytest.mark.parametrize("path_mtu", [1024, 4096])
@pytest.mark.parametrize("probability", [0.0, 0.08])
def test_our_nic_and_soft_roce_exchange_sends_and_writes_both_ways(guest, hub, path_mtu, probability):
    with PluggedNic(hub.address) as peer, contextlib.ExitStack() as lossy:
        if probability:
            lossy.enter_context(loss([hub.up[0], hub.down[0]], probability))
        result = exchange(guest, peer, path_mtu, TIMEOUT_LOSSY if probability else TIMEOUT_QUIET)
        assert (result["wrong"], result["missing"]) == (0, 0)


def our_communicator(guest: Guest, hub: Hub, **choices) -> list[dict]:
    """What each rank in the guest says about a run of communicator_script.py."""
    options = {
        "ranks": RANKS, "world_size": RANKS, "switch": f"{HOST_IP}:{hub.control_port}", "provider": "rdma",
        "path_mtu": 4096,
    } | choices  # fmt: skip
    variables = f"NETREDUCE_TOKEN={TOKEN} NUMBA_DISABLE_JIT=1"
    lines = guest.run(f"{variables} python3.11 communicator_script.py '{json.dumps(options)}' 2>&1", 120)
    print("\n".join(lines))
    return json.loads(next(line for line in lines if line.startswith("RESULT ")).removeprefix("RESULT "))


def test_our_communicator_runs_on_rdma_devices(guest, hub):
    results = our_communicator(guest, hub, path_mtu=1024)
    assert [result["wrong"] for result in results] == [[]] * RANKS
    assert all(result["engine"]["in_network_active"] for result in results)
    assert not any(result["device"][name] for result in results for name in ("out_of_seq_request", "rcvd_seq_err"))


def test_rdma_devices_and_the_embedded_nic_are_ranks_of_one_group(guest, hub):
    geometry, world_size = Geometry(path_mtu=4096), RANKS + 1
    outcome: list[list[str]] = []

    def run_embedded() -> None:
        with Communicator.connect(hub.address, RANKS, world_size, geometry=geometry, timeout_s=100) as world:
            outcome.append(exercise(world))

    embedded = threading.Thread(target=run_embedded)
    embedded.start()
    results = our_communicator(guest, hub, world_size=world_size)
    embedded.join(30)
    assert [result["wrong"] for result in results] == [[]] * RANKS
    assert outcome == [[]]


def test_doctor_finds_the_devices_and_the_mtu_that_the_kernel_uses(guest):
    print_checks = "[print(c.name.strip(), c.status, c.found) for c in rdma_checks(str(), str())]"
    lines = guest.run(f'python3.11 -c "from netreduce.cli.doctor_rdma import rdma_checks; {print_checks}"', 60)
    assert "RDMA devices ok rxe0, rxe1, rxe2, rxe3" in lines
    port = next(line for line in lines if line.startswith("rxe2 port 1 ok ACTIVE, Ethernet, "))
    assert "eth2 with active MTU 4096" in port
    assert "active_mtu:\t\t4096 (5)" in "\n".join(guest.run("ibv_devinfo -d rxe2", 30))
    assert "GID 1 ok 10.0.0.3 of eth2, RoCE v2" in lines
    assert any(line.startswith("pyverbs ok") for line in lines)


def test_what_is_wrong_with_the_host_is_said_in_one_line_with_what_to_type(guest):
    mtu, route, memlock = guest.run("NUMBA_DISABLE_JIT=1 python3.11 errors_script.py 2>&1", 60)
    assert "active MTU of 1024" in mtu
    assert "ip link set eth0 mtu 4192" in mtu
    assert "rxe0 port 1 (10.0.0.1) finds no way to 10.99.0.1" in route
    assert "may lock 256: ulimit -l 2048" in memlock


def test_everything_that_crossed_the_switch_is_well_formed(guest, hub):
    """The last test: it judges the captures of all before it. zlib verifies each ICRC, tshark the rest."""
    over_ipv4, over_ipv6 = require_well_formed(hub.pcap)
    assert over_ipv4 > 3000
    assert over_ipv6 > 300
