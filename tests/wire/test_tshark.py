"""tshark judges frames of every opcode: none malformed, and the same opcode, PSN, QPN, padding, headers and ICRC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.wire.oracles import tshark_fields

from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.opcodes import OPCODE_ROLES, Opcode, Role
from netreduce.wire.pcap import Direction, PcapWriter

FIELDS = (
    *("infiniband.bth.opcode", "infiniband.bth.psn", "infiniband.bth.destqp", "infiniband.bth.padcnt"),
    *("infiniband.bth.a", "infiniband.invariant.crc", "infiniband.reth.va"),
    *("infiniband.reth.r_key", "infiniband.immdt", "vlan.id", "_ws.malformed"),
)

PAYLOAD = b"\xa5" * 200
"""tshark guesses at payloads, and takes some short or random ones for a malformed RPC over RDMA; not this one."""


def number(text: str) -> int | None:
    return int(text, 0) if text else None


@pytest.fixture
def frames(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Arguments of frames: every opcode over both IP versions, with and without a tag, of many sizes."""
    cases = []
    for opcode in Opcode:
        roles = OPCODE_ROLES[opcode]
        for ip in ({}, {"source_ip": "fe80::1", "destination_ip": "fe80::2"}):
            for vlan in (None, 5):
                arguments = {
                    "opcode": int(opcode),
                    "payload": PAYLOAD[: rng.integers(40, 200)] if roles & Role.PAYLOAD else b"",
                    "psn": int(rng.integers(1 << 24)),
                    "destination_qpn": int(rng.integers(2, 1 << 24)),
                    "ack_request": bool(rng.integers(2)),
                    "vlan": vlan,
                    **ip,
                }
                if roles & (Role.RETH | Role.ATOMIC_ETH):
                    arguments |= {"remote_address": int(rng.integers(1 << 62)), "rkey": int(rng.integers(1 << 32))}
                if roles & Role.IMMEDIATE:
                    arguments["immediate"] = int(rng.integers(1 << 32))
                cases.append(arguments)
    return cases


def test_tshark_dissects_every_opcode_as_we_built_it(frames: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "all.pcapng"
    built = [build_frame(**arguments) for arguments in frames]
    with PcapWriter(path, ["port 0"]) as writer:
        writer.write_burst(0, Direction.INBOUND, build_burst(built))
    rows = tshark_fields(path, *FIELDS)
    assert len(rows) == len(frames)
    for arguments, frame, row in zip(frames, built, rows, strict=True):
        seen = dict(zip(FIELDS, row, strict=True))
        where = f"{Opcode(arguments['opcode']).name}: {seen}"
        assert not seen["_ws.malformed"], where
        assert number(seen["infiniband.bth.opcode"]) == arguments["opcode"], where
        assert number(seen["infiniband.bth.psn"]) == arguments["psn"], where
        assert number(seen["infiniband.bth.destqp"]) == arguments["destination_qpn"], where
        assert number(seen["infiniband.bth.padcnt"]) == -len(arguments["payload"]) % 4, where
        assert number(seen["infiniband.bth.a"]) == arguments["ack_request"], where
        if not OPCODE_ROLES[arguments["opcode"]] & (Role.UD | Role.CNP):  # tshark shows no ICRC of these
            assert number(seen["infiniband.invariant.crc"]) == int.from_bytes(frame[-4:].tobytes(), "big"), where
        assert number(seen["infiniband.reth.va"]) == arguments.get("remote_address"), where
        assert number(seen["infiniband.reth.r_key"]) == arguments.get("rkey"), where
        assert seen["infiniband.immdt"] == (f"{arguments['immediate']:08x}" if "immediate" in arguments else ""), where
        assert number(seen["vlan.id"]) == arguments["vlan"], where
