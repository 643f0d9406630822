"""The switch between endpoints that nobody here wrote: soft-RoCE devices of a stock Linux kernel in a QEMU guest.

One guest is booted for all tests; its devices are driven by plain pyverbs and by the tools of rdma-core and perftest.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.interop.guest import Guest, guest_ip, guest_mac
from tests.interop.hub import Hub
from tests.interop.image import missing_tools

from netreduce.wire.control import Endpoint, Geometry

pytestmark = [pytest.mark.live, pytest.mark.timeout(200)]

RANKS = 4
SEED = 20230325
FLOAT32, UINT8 = 1, 6
TIMEOUT_QUIET, TIMEOUT_LOSSY = 17, 12
"""Exponents of a queue pair's retransmission timeout: 537 ms never strikes by mistake; 17 ms makes losses cheap."""
HERE = Path(__file__).parent


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
    scripts = {name: (HERE / name).read_text() for name in ("ring_script.py",)}
    guest = Guest(hub.sockets, scripts)
    hub.start()
    guest.wait_until_ready()
    yield guest
    guest.close()


def ring(guest: Guest, hub: Hub, limit_s: float = 60, **choices) -> tuple[dict, dict]:
    """All-reduce through the switch by a plain pyverbs script; its result, and the ring's counters at the switch."""
    options = {
        "ranks": RANKS, "messages": 6, "window": 2, "path_mtu": 1024, "length": 4096, "dtype": FLOAT32, "ring_id": 7,
        "first_psn": 0xFFFFF0, "carrier": "send", "timeout": TIMEOUT_QUIET, "limit_s": limit_s,
    } | choices  # fmt: skip
    packets = -(-(options["length"] + 16) // options["path_mtu"])
    geometry = Geometry(options["window"], packets, options["path_mtu"])

    def register(line: str) -> str | None:
        if not line.startswith("ENDPOINTS "):
            return None
        pairs = enumerate(json.loads(line.split(" ", 1)[1]))
        endpoints = [Endpoint(r, guest_ip(r), guest_mac(r), *qpns, options["first_psn"]) for r, qpns in pairs]
        assert hub.observer.register(endpoints, geometry, options["ring_id"]) == options["ring_id"]
        return "go"

    lines = guest.run(f"python3.11 ring_script.py '{json.dumps(options)}'", limit_s + 30, register)
    (state,) = hub.observer.rings()
    hub.observer.unregister(options["ring_id"])
    return json.loads(lines[-1].removeprefix("RESULT ")), state.counters


TROUBLE = ("out_of_seq_request", "rcvd_seq_err", "completer_retry_err", "retry_exceeded_err", "duplicate_request",
           "rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err", "send_err")  # fmt: skip


@pytest.mark.parametrize("carrier", ["send", "write"])
@pytest.mark.parametrize(
    ("path_mtu", "length", "dtype"), [(1024, 20 * 1024 - 16 + 4, FLOAT32), (4096, 5 * 4096 - 16 - 2723, UINT8)]
)
def test_every_rank_gets_the_sum_and_no_device_notices_anything(guest, hub, carrier, path_mtu, length, dtype):
    """Lengths that fill no last packet and, in bytes, need three of padding; PSNs wrap within the first message."""
    result, counters = ring(guest, hub, carrier=carrier, path_mtu=path_mtu, length=length, dtype=dtype)
    assert result["wrong"] == 0
    assert counters["messages_aggregated"] == 6
    for device in result["counters"]:
        assert not {name: count for name, count in device.items() if name in TROUBLE}
