"""Frames broken in random ways, and a digest of what parse_packet and the ICRC make of them: equal in both modes.

Run as a program with a seed, it prints the digest; test_two_modes.py runs it in the mode that the test is not in.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from netreduce.wire.build import build_frame
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.opcodes import OPCODE_ROLES, Opcode, Role
from netreduce.wire.packet import PACKET_FIELDS, Parse, make_packet_table, parse_packet

FRAMES = 1500
ADDRESSES = (("10.0.0.1", "192.168.255.254"), ("fe80::1", "2001:db8:ffff::ffff"))
LATE_FIELDS = [
    PACKET_FIELDS.index(name) for name in ("payload_at", "payload_bytes", "icrc_at", "psn", "remote_address")
]


def broken_frame(rng: np.random.Generator) -> np.ndarray:
    """A frame of any opcode with up to four bytes of its head changed, and perhaps its tail cut."""
    opcode = int(rng.choice(list(Opcode)))
    source, destination = ADDRESSES[rng.integers(2)]
    payload = rng.bytes(int(rng.integers(0, 64))) if OPCODE_ROLES[opcode] & Role.PAYLOAD else b""
    frame = build_frame(
        opcode,
        payload,
        source_ip=source,
        destination_ip=destination,
        vlan=int(rng.integers(1, 4096)) if rng.random() < 0.3 else None,
        psn=int(rng.integers(1 << 24)),
        destination_qpn=int(rng.integers(1 << 24)),
        udp_source_port=int(rng.integers(1 << 16)),
    )
    for _ in range(int(rng.integers(0, 5))):
        frame[rng.integers(min(frame.size, 80))] = rng.integers(256)
    return frame[: rng.integers(frame.size + 1)].copy() if rng.random() < 0.2 else frame


def digest(seed: int) -> str:
    """Digest of codes, and of the fields and ICRC verdicts of those that parse; and how many did."""
    rng, row = np.random.default_rng(seed), make_packet_table()[0]
    outcome, parsed = hashlib.sha256(), 0
    for _ in range(FRAMES):
        frame = broken_frame(rng)
        code = int(parse_packet(frame, row))
        outcome.update(bytes([code]))
        if code == Parse.OK:
            parsed += 1
            values = row.tolist()
            good = bool(icrc_is_good(frame, row))
            outcome.update(repr(([int(values[i]) for i in LATE_FIELDS], good)).encode())
    return f"{outcome.hexdigest()} {parsed}"


if __name__ == "__main__":
    print(digest(int(sys.argv[1])))
