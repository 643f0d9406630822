"""The Connection Lookup Table: from a packet to its connection, and from its PSN to its message.

A connection is found by (source IP, destination IP, destination QPN); its answers have a key of their own. What a key
means is its `role`. Only a message's first packet carries the INA header, so each connection remembers its last 2 N
messages by their PSN ranges: go-back-N may restart in the middle of the message before the newest, and a table with
only the newest would drop that replay for ever.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled
from netreduce.switch.tables import NOBODY, ROLE_NONE
from netreduce.wire.psn import PSN_MASK

_24_BITS = 0xFFFFFF


@compiled
def _key_place(keys: np.recarray, source_ip: int, destination_ip: int, qpn: int) -> int:
    """Where the search for a key starts. Factors of 32 bits on 24-bit numbers: no product leaves 63 bits."""
    mixed = ((source_ip & _24_BITS) * 0x9E3779B1) ^ ((destination_ip & _24_BITS) * 0x85EBCA6B) ^ (qpn * 0xC2B2AE35)
    return (mixed >> 16) & (keys.size - 1)


@compiled
def find_key(
    keys: np.recarray, source_high: int, source_low: int, destination_high: int, destination_low: int, qpn: int
) -> int:
    """Row of the key in `keys`; if it is not there, ``-1 - row`` of the free row where it belongs.

    Linear probing; the table is never more than a quarter full.
    """
    at = _key_place(keys, source_low, destination_low, qpn)
    for _ in range(keys.size):
        row = keys[at]
        if row.role == ROLE_NONE:
            break
        if (
            row.destination_qpn == qpn
            and row.source_ip_low == source_low
            and row.destination_ip_low == destination_low
            and row.source_ip_high == source_high
            and row.destination_ip_high == destination_high
        ):
            return at
        at = (at + 1) & (keys.size - 1)
    return -1 - at


@compiled
def find_packet(keys: np.recarray, packet: np.record) -> int:
    """Row in `keys` of a parsed packet, or a negative number."""
    return find_key(
        keys,
        packet.source_ip_high,
        packet.source_ip_low,
        packet.destination_ip_high,
        packet.destination_ip_low,
        packet.destination_qpn,
    )


@compiled
def find_entry(entries: np.recarray, ring: np.record, connection: np.record, psn: int) -> int:
    """Row in `entries` of the message that `psn` belongs to, newest first; `NOBODY` if it is older than all."""
    place = connection.newest % ring.message_count
    for _ in range(min(ring.message_count, connection.newest + 1)):
        at = connection.first_entry + place
        entry = entries[at]
        if (psn - entry.first_psn) & PSN_MASK < entry.packets:
            return at
        place = place - 1 if place > 0 else ring.message_count - 1
    return NOBODY
