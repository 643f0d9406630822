"""Ethernet forwarding: a learning bridge (IEEE 802.1D) that passes every frame as it is. For routes see routing.py.

Any ethertype passes, tagged or not. A frame never leaves by the port it came from. Attached addresses are fixed: they
neither move nor age, and a frame that claims one at another port is dropped.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, inlined
from netreduce.switch.tables import MAC_BEYOND, NOBODY, PROBES_MAX, SwitchTables
from netreduce.trace.events import DropReason, Event, emit
from netreduce.units import PS_PER_S
from netreduce.wire.bigendian import read_be16, read_be32, write_be16, write_be32
from netreduce.wire.frames import queue_put

MAC_AGE_PS = 300 * PS_PER_S
"""A learned address that was silent for this long is forgotten (IEEE 802.1D, table 7-5: ageing time)."""
MULTICAST_BIT = 1 << 40


@compiled
def read_mac(frame: np.ndarray, at: int) -> int:
    """The MAC address at offset `at`, as a number."""
    return (read_be16(frame, at) << 32) | read_be32(frame, at + 2)


@compiled
def write_mac(frame: np.ndarray, at: int, mac: int) -> None:
    """Write the MAC address that `mac` is, as a number, to offset `at`."""
    write_be16(frame, at, mac >> 32)
    write_be32(frame, at + 2, mac & 0xFFFFFFFF)


@compiled
def _mac_place(macs: np.recarray, mac: int, probe: int) -> int:
    mixed = ((mac & 0xFFFFFF) * 0x9E3779B1) ^ ((mac >> 24) * 0x85EBCA6B)  # 24 by 32 bits: within 63
    return ((mixed >> 16) + probe) & (macs.size - 1)


@compiled
def find_mac(macs: np.recarray, mac: int, now_ps: int) -> int:
    """Row of the address in `macs`, or `NOBODY` if it is unknown or has aged."""
    for probe in range(PROBES_MAX):
        at = _mac_place(macs, mac, probe)
        row = macs[at]
        if row.mac == mac and (row.fixed != 0 or now_ps - row.seen_ps <= MAC_AGE_PS):
            return at
    return NOBODY


@compiled
def free_mac(macs: np.recarray, mac: int, now_ps: int) -> int:
    """Row where the unknown address may be stored, or `NOBODY`."""
    for probe in range(PROBES_MAX):
        at = _mac_place(macs, mac, probe)
        row = macs[at]
        if row.mac == 0 or (row.fixed == 0 and now_ps - row.seen_ps > MAC_AGE_PS):
            return at
    return NOBODY


@inlined
def learn(tables: SwitchTables, port: int, mac: int, now_ps: int) -> bool:
    """Note that `mac` is behind `port`; False if it is attached to another one."""
    macs = tables.macs
    if mac == 0 or mac & MULTICAST_BIT:
        return True
    at = find_mac(macs, mac, now_ps)
    if at < 0:
        at = free_mac(macs, mac, now_ps)
        if at < 0:
            tables.state[0].not_learned += 1
            return True
    row = macs[at]
    if row.mac == mac and row.fixed != 0:
        return row.port == port or (row.fixed == MAC_BEYOND and tables.ports[port].trunk != 0)
    row.mac = mac
    row.port = port
    row.seen_ps = now_ps
    return True


@compiled
def count_drop(tables: SwitchTables, port: int, reason: int, length: int, now_ps: int) -> None:
    """Count and log the drop of a frame of ``length`` bytes: for the ring that it belongs to, or for none."""
    ring, packet = tables.state[0].ring, tables.packet[0]
    tables.drops[ring, reason] += 1  # row -1 is the last: frames of no ring
    ring_id, qpn, psn = -1, -1, -1
    if ring >= 0:
        ring_id, qpn, psn = tables.rings[ring].ring_id, packet.destination_qpn, packet.psn
    emit(tables.log, now_ps, Event.DROPPED.value, port, qpn, psn, ring_id, -1, -1, -1, length, reason)


@compiled
def send_copy(tables: SwitchTables, port: int, frame: np.ndarray, now_ps: int) -> None:
    """Append a copy of `frame` to the egress queue of `port`, or drop it and count."""
    if not queue_put(tables.egress_data[port], tables.egress_state[port], frame, now_ps):
        count_drop(tables, port, DropReason.QUEUE_FULL.value, frame.size, now_ps)


@inlined
def forward(tables: SwitchTables, ingress: int, frame: np.ndarray, now_ps: int) -> None:
    """Send `frame` on: to its next hop, or unchanged to the port of its destination, or to all others if unknown."""
    if tables.state[0].hop >= 0:
        port = tables.hops[tables.state[0].hop].port
        tables.state[0].routed += 1
        emit(tables.log, now_ps, Event.FORWARDED.value, port, -1, -1, -1, -1, -1, -1, frame.size, -1)
        send_copy(tables, port, frame, now_ps)
        return
    way = tables.state[0].way
    if way >= 0:
        tables.state[0].forwarded += 1
        emit(tables.log, now_ps, Event.FORWARDED.value, way, -1, -1, -1, -1, -1, -1, frame.size, -1)
        send_copy(tables, way, frame, now_ps)
        return
    destination = read_mac(frame, 0)
    at = NOBODY if destination & MULTICAST_BIT else find_mac(tables.macs, destination, now_ps)
    if at >= 0:
        port = tables.macs[at].port
        if port == ingress:
            tables.state[0].filtered += 1
            return
        tables.state[0].forwarded += 1
        emit(tables.log, now_ps, Event.FORWARDED.value, port, -1, -1, -1, -1, -1, -1, frame.size, -1)
        send_copy(tables, port, frame, now_ps)
        return
    tables.state[0].flooded += 1
    emit(tables.log, now_ps, Event.FLOODED.value, ingress, -1, -1, -1, -1, -1, -1, frame.size, -1)
    for port in range(tables.ports.size):
        if port != ingress and tables.ports[port].up != 0 and tables.ports[port].blocked == 0:
            send_copy(tables, port, frame, now_ps)
