"""The switch between endpoints that nobody here wrote: soft-RoCE devices of a stock Linux kernel in a QEMU guest.

One guest is booted for all tests; its devices are driven by plain pyverbs and by the tools of rdma-core and perftest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop.guest import Guest, guest_gid, guest_ip, guest_mac, guest_vlan_ip
from tests.interop.hub import Hub
from tests.interop.image import missing_tools
from tests.interop.nic_driver import PluggedNic, exchange
from tests.wire.oracles import tshark_fields

from netreduce.fabric.faults import Faults
from netreduce.wire.capture import CapturedFrame, read_capture
from netreduce.wire.control import Endpoint, Geometry
from netreduce.wire.pcap import Direction

pytestmark = [pytest.mark.live, pytest.mark.timeout(200)]

RANKS = 4
SEED = 20230325
FLOAT32, UINT8 = 1, 6
TIMEOUT_QUIET, TIMEOUT_LOSSY = 17, 13
"""Exponents of a queue pair's retransmission timeout: 537 ms never strikes by mistake; 34 ms makes losses cheap."""
HERE = Path(__file__).parent
PAYLOAD_GUESSES = ("rpcordma", "nvme-rdma", "smb_direct", "iser")
"""tshark guesses at payloads, and takes some for malformed messages of these."""


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
    scripts = {name: (HERE / name).read_text() for name in ("verbs_common.py", "ring_script.py", "peer_script.py")}
    scripts["tools.sh"] = TOOLS
    guest = Guest(hub.sockets, scripts, setup=ROUTE_TO_CABLES)
    hub.start()
    guest.wait_until_ready()
    yield guest
    guest.close()


ROUTE_TO_CABLES = "/usr/bin/ip route add 10.78.0.0/16 dev eth0\n" + "".join(
    f"/usr/bin/ip neigh add 10.78.0.{n} lladdr 02:4e:52:00:00:{n:02x} dev eth0 nud permanent\n" for n in range(2, 8)
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
ib_write_bw -d rxe0 -x $(gid 0) -m 4096 -F -s 50000 -n 20 > server.log 2>&1 & sleep 1
ib_write_bw -d rxe1 -x $(gid 1) -m 4096 -F -s 50000 -n 20 10.0.0.1
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
    rules = [line.drop(probability=probability, where=lambda frame: frame.packet is not None) for line in faults]
    yield
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


def test_a_ring_within_a_vlan_is_summed_as_well(guest, hub):
    outcome = ring(guest, hub, guest_vlan_ip, length=3000)
    assert outcome.result["wrong"] == 0
    assert outcome.counters["messages_aggregated"] == 6
    assert not any(outcome.trouble())


def test_a_ring_recovers_from_losses_on_every_line(guest, hub):
    with loss([*hub.up, *hub.down], 0.01):
        outcome = ring(guest, hub, messages=24, length=20 * 1024 - 16, timeout=TIMEOUT_LOSSY)
    assert outcome.result["wrong"] == 0
    assert any(outcome.trouble())


def test_tools_of_others_run_beside_a_ring_and_their_frames_stay_as_they_are(guest, hub):
    before = sum(1 for _ in captured(hub))
    outcome = ring(guest, hub, messages=300, length=3000, beside="(sh tools.sh > tools.log 2>&1; touch tools.done) &")
    text = "\n".join(guest.run("until [ -e tools.done ]; do sleep 1; done; cat tools.log", 60))
    assert outcome.result["wrong"] == 0
    assert "30 iters in" in text
    assert re.search(r"^ *50000 +20 ", text, re.MULTILINE)
    members = {(e.ip, qpn) for e in outcome.endpoints for qpn in (e.successor_qpn, e.predecessor_qpn)}
    others = [frame for frame in list(captured(hub))[before:] if destination(frame.data) not in members]
    arrived = Counter(frame.data for frame in others if frame.direction == Direction.INBOUND)
    left = Counter(frame.data for frame in others if frame.direction == Direction.OUTBOUND)
    assert sum(arrived.values()) > 300
    assert not arrived - left, "every frame left as it came"
    assert not set(left) - set(arrived), "and none was made up"


@pytest.mark.parametrize("path_mtu", [1024, 4096])
@pytest.mark.parametrize("probability", [0.0, 0.03])
def test_our_nic_and_soft_roce_exchange_sends_and_writes_both_ways(guest, hub, path_mtu, probability):
    with PluggedNic(hub.address) as peer, contextlib.ExitStack() as lossy:
        if probability:
            lossy.enter_context(loss([hub.up[0], hub.down[0]], probability))
        result = exchange(guest, peer, path_mtu, TIMEOUT_LOSSY if probability else TIMEOUT_QUIET)
        assert (result["wrong"], result["missing"]) == (0, 0)


def captured(hub: Hub) -> Iterator[CapturedFrame]:
    with hub.pcap.open("rb") as stream:
        yield from read_capture(stream, hub.pcap.name)


def roce_at(frame: bytes) -> int | None:
    """Where the IPv4 header of a RoCEv2 packet is; None for other frames."""
    at = 18 if frame[12:14] == b"\x81\x00" else 14
    is_udp = frame[at - 2 : at] == b"\x08\x00" and frame[at + 9] == socket.IPPROTO_UDP
    return at if is_udp and frame[at + 22 : at + 24] == struct.pack(">H", 4791) else None


def destination(frame: bytes) -> tuple[str, int] | None:
    """Address and queue pair that a RoCEv2 frame over IPv4 goes to; None for other frames."""
    at = roce_at(frame)
    if at is None:
        return None
    return socket.inet_ntoa(frame[at + 16 : at + 20]), int.from_bytes(frame[at + 33 : at + 36], "big")


def reference_icrc(packet: bytes) -> bytes:
    """The ICRC of a packet from its IP header on, as RoCEv2 annex A17.3.3 has it, by zlib."""
    masked = bytearray(packet[:-4])
    for at in (
        1,
        8,
        10,
        11,
        26,
        27,
        32,
    ):  # ToS, TTL, the checksums of IP and UDP, and BTH's FECN, BECN and reserved bits
        masked[at] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def test_everything_that_crossed_the_switch_is_well_formed(guest, hub):
    """The last test: it judges the captures of all before it. zlib verifies each ICRC, tshark the rest."""
    frames = list(captured(hub))
    packets = [(frame.data, at) for frame in frames if (at := roce_at(frame.data)) is not None]
    assert len(packets) > 3000
    whole = [data[at : at + struct.unpack_from(">H", data, at + 2)[0]] for data, at in packets]
    wrong = [packet for packet in whole if reference_icrc(packet) != packet[-4:]]
    assert not wrong
    rows = tshark_fields(hub.pcap, "_ws.malformed", "infiniband.bth.opcode", disable=PAYLOAD_GUESSES)
    assert sum(bool(opcode) for _, opcode in rows) == len(packets)
    assert not [row for row in rows if row[0]]
