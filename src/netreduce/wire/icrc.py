"""The invariant CRC that guards a RoCEv2 packet end to end (RoCEv2 annex A17.3.3)."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, crc32

UDP_BYTES = 8
ICRC_SEED = 0x2144DF1C
"""CRC-32 of eight bytes 0xFF, which stand in for the InfiniBand LRH (RoCEv2 annex A17.3.3)."""


@compiled
def icrc(frame: np.ndarray, ip_at: int, udp_at: int, icrc_at: int) -> int:
    """Invariant CRC of the packet, as a number; on the wire it lies little-endian (RoCEv2 annex A17.3.3).

    Fields that routers change count as ones. They are masked in place and put back, so that one run over contiguous
    bytes does it all. `frame` must be writable.
    """
    bth_at = udp_at + UDP_BYTES
    udp_sum_0, udp_sum_1, resv8a = frame[udp_at + 6], frame[udp_at + 7], frame[bth_at + 4]
    frame[udp_at + 6] = 0xFF
    frame[udp_at + 7] = 0xFF
    frame[bth_at + 4] = 0xFF
    if frame[ip_at] >> 4 == 4:
        tos, ttl, sum_0, sum_1 = frame[ip_at + 1], frame[ip_at + 8], frame[ip_at + 10], frame[ip_at + 11]
        frame[ip_at + 1] = 0xFF
        frame[ip_at + 8] = 0xFF
        frame[ip_at + 10] = 0xFF
        frame[ip_at + 11] = 0xFF
        value = crc32(frame[ip_at:icrc_at], ICRC_SEED)
        frame[ip_at + 1] = tos
        frame[ip_at + 8] = ttl
        frame[ip_at + 10] = sum_0
        frame[ip_at + 11] = sum_1
    else:
        class_0, flow_0, flow_1, flow_2, hops = (
            frame[ip_at],
            frame[ip_at + 1],
            frame[ip_at + 2],
            frame[ip_at + 3],
            frame[ip_at + 7],
        )
        frame[ip_at] = 0x6F
        frame[ip_at + 1] = 0xFF
        frame[ip_at + 2] = 0xFF
        frame[ip_at + 3] = 0xFF
        frame[ip_at + 7] = 0xFF
        value = crc32(frame[ip_at:icrc_at], ICRC_SEED)
        frame[ip_at] = class_0
        frame[ip_at + 1] = flow_0
        frame[ip_at + 2] = flow_1
        frame[ip_at + 3] = flow_2
        frame[ip_at + 7] = hops
    frame[udp_at + 6] = udp_sum_0
    frame[udp_at + 7] = udp_sum_1
    frame[bth_at + 4] = resv8a
    return value


@compiled
def write_icrc(frame: np.ndarray, ip_at: int, udp_at: int, icrc_at: int) -> None:
    """Compute the ICRC and write its four bytes, little-endian."""
    store_icrc(frame, icrc_at, np.int64(icrc(frame, ip_at, udp_at, icrc_at)))


@compiled
def store_icrc(frame: np.ndarray, icrc_at: int, value: int) -> None:
    """Write the four bytes of an ICRC, little-endian."""
    frame[icrc_at] = value & 0xFF
    frame[icrc_at + 1] = (value >> 8) & 0xFF
    frame[icrc_at + 2] = (value >> 16) & 0xFF
    frame[icrc_at + 3] = value >> 24


@compiled
def icrc_is_good(frame: np.ndarray, packet: np.record) -> bool:
    """Whether the ICRC of a packet that parsed is right."""
    at = packet.icrc_at
    stored = (
        np.int64(frame[at])
        | (np.int64(frame[at + 1]) << 8)
        | (np.int64(frame[at + 2]) << 16)
        | (np.int64(frame[at + 3]) << 24)
    )
    return np.int64(icrc(frame, packet.ip_at, packet.udp_at, at)) == stored
