"""Congestion marking: RED on a queue's length (Floyd, Jacobson 1993), as DCQCN's switches use it, and RFC 3168's mark.

A queue below `kmin_bytes` marks nothing, above `kmax_bytes` everything, and between them with a probability that rises
to `p_max`. Equal thresholds make the step that DCTCP uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netreduce.compiled import compiled
from netreduce.errors import ConfigurationError
from netreduce.wire.bigendian import read_be16, write_be16
from netreduce.wire.packet import (
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_VLAN,
    IPV4_BYTES,
    IPV6_BYTES,
    VLAN_TAG_BYTES,
    ipv4_checksum,
)

CONGESTION_EXPERIENCED = 3
RANDOM_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class EcnMarking:
    """Thresholds in bytes of the sender's egress queue, and the greatest probability between them."""

    kmin_bytes: int
    kmax_bytes: int
    p_max: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.kmin_bytes <= self.kmax_bytes:
            raise ConfigurationError(
                f"kmin_bytes={self.kmin_bytes}, kmax_bytes={self.kmax_bytes}: 0 <= kmin_bytes <= kmax_bytes is needed"
            )
        if not 0.0 <= self.p_max <= 1.0:
            raise ConfigurationError(f"p_max={self.p_max}: a probability from 0 to 1 is needed")


@compiled
def next_random(state: int) -> int:
    """The 32-bit number after `state`, never 0 (Marsaglia's xorshift, 2003): chance that fits into a table's row."""
    state ^= (state << 13) & RANDOM_MASK
    state ^= state >> 17
    return state ^ ((state << 5) & RANDOM_MASK)


@compiled
def red_marks(queued_bytes: int, kmin_bytes: int, kmax_bytes: int, p_max_32: int, random: int) -> bool:
    """Whether a frame that leaves a queue of `queued_bytes` is marked; `p_max_32` is the probability times 2^32."""
    if queued_bytes < kmin_bytes:
        return False
    if queued_bytes >= kmax_bytes:
        return True
    return random * (kmax_bytes - kmin_bytes) < p_max_32 * (queued_bytes - kmin_bytes)


@compiled
def mark_congestion(frame: np.ndarray) -> bool:
    """Set "congestion experienced" in an IP frame whose sender understands ECN; False, untouched, for any other."""
    at = ETHERNET_BYTES
    if frame.size < at + VLAN_TAG_BYTES:
        return False
    ethertype = read_be16(frame, 12)
    if ethertype == ETHERTYPE_VLAN:
        ethertype = read_be16(frame, 16)
        at += VLAN_TAG_BYTES
    if ethertype == ETHERTYPE_IPV4 and frame.size >= at + IPV4_BYTES:
        header_bytes = (np.int64(frame[at]) & 15) * 4
        if np.int64(frame[at + 1]) & 3 == 0 or header_bytes < IPV4_BYTES or frame.size < at + header_bytes:
            return False
        frame[at + 1] |= CONGESTION_EXPERIENCED
        write_be16(frame, at + 10, 0)
        write_be16(frame, at + 10, ipv4_checksum(frame, at, header_bytes))
        return True
    if ethertype == ETHERTYPE_IPV6 and frame.size >= at + IPV6_BYTES and (np.int64(frame[at + 1]) >> 4) & 3:
        frame[at + 1] |= CONGESTION_EXPERIENCED << 4
        return True
    return False
