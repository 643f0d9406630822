"""Registration of rings: admission with a reason, and ranges of the shared pools. Plain Python, off the data path.

A ring that does not fit is refused here, at set-up; once admitted it never runs out of anything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from netreduce.errors import AdmissionError
from netreduce.switch.answers import RNR_TIMER_FIRST
from netreduce.switch.checksum import SHIFT_ENTRIES
from netreduce.switch.lookup import find_key
from netreduce.switch.tables import (
    HEADER_ROOM,
    MESSAGES_MAX,
    NOBODY,
    OUTFLOWS,
    RING_COUNTERS,
    ROLE_ACKNOWLEDGE,
    ROLE_DATA,
    ROLE_NONE,
    SwitchLimits,
    SwitchTables,
)
from netreduce.switch.translation import SUM, TOTAL
from netreduce.wire.control import PATH_MTUS, RANKS_MAX, Endpoint, Geometry
from netreduce.wire.packet import IPV4_MAPPED
from netreduce.wire.psn import psn_add

RING_ID_MAX = 0xFFFF
_MB = 1_000_000
_64_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class RingSpec:
    """A ring to register: its id, its members in rank order, and what they agreed on."""

    ring_id: int
    endpoints: tuple[Endpoint, ...]
    geometry: Geometry

    @property
    def rank_slots(self) -> int:
        """Slots that the ring takes, which is also how many copies it takes for each rank."""
        return 2 * self.geometry.message_window * self.geometry.message_packets

    @property
    def rank_bytes(self) -> int:
        """Aggregator memory that the ring takes for each rank."""
        return self.rank_slots * (HEADER_ROOM + self.geometry.path_mtu)


@dataclass(frozen=True)
class RingPart:
    """What of a ring meets at one switch. A connection is named by its sender's rank; it ends at the next one.

    `children` are the connections whose data are summed here, in this order. If the ring goes beyond the switch, one of
    them is `leaving`, which carries the sum on, and `entering` is the connection that brings the total. `ports` of a
    connection are those towards its sender and towards its successor; frames of a `pinned` part take them whatever
    the addresses say.
    """

    spec: RingSpec
    children: tuple[int, ...]
    ports: Mapping[int, tuple[int, int]]
    leaving: int | None = None
    entering: int | None = None
    pinned: bool = True

    @property
    def connections(self) -> tuple[int, ...]:
        """All that the switch keeps state of, by place."""
        return self.children if self.entering is None else (*self.children, self.entering)

    def ends(self, rank: int) -> tuple[Endpoint, Endpoint]:
        """Sender and successor of a connection."""
        endpoints = self.spec.endpoints
        return endpoints[rank], endpoints[(rank + 1) % len(endpoints)]


class Ranges:
    """First-fit allocation of contiguous ranges of one pool; freed neighbours grow together."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)]  # (start, length), ascending, never adjacent

    @property
    def largest(self) -> int:
        """Length of the longest range that can be taken."""
        return max((length for _, length in self._free), default=0)

    @property
    def free(self) -> int:
        """Total length of what is not taken."""
        return sum(length for _, length in self._free)

    def take(self, length: int) -> int:
        """Start of a range of `length`, which must not exceed `largest`."""
        at = next(i for i, (_, free) in enumerate(self._free) if free >= length)
        start, free = self._free[at]
        self._free[at : at + 1] = [(start + length, free - length)] if free > length else []
        return start

    def give(self, start: int, length: int) -> None:
        """Return a range that `take` handed out."""
        merged: list[tuple[int, int]] = []
        for begin, size in sorted([*self._free, (start, length)]):
            if merged and merged[-1][0] + merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((begin, size))
        self._free = merged


def ip_halves(ip: str) -> tuple[int, int]:
    """High and low 64 bits of an address as int64 bits, IPv4 mapped into IPv6, as `parse_packet` holds them."""
    address = ipaddress.ip_address(ip)
    if isinstance(address, ipaddress.IPv4Address):
        return 0, IPV4_MAPPED | int(address)
    value = int(address)
    high, low = value >> 64, value & _64_BITS
    return _int64(high), _int64(low)


def ip_text(high: int, low: int) -> str:
    """The address of these halves: the inverse of `ip_halves`."""
    address = ipaddress.IPv6Address((high & _64_BITS) << 64 | low & _64_BITS)
    return str(address.ipv4_mapped or address)


def _int64(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


class Registry:
    """The rings of one switch: who holds which rows of its tables."""

    def __init__(self, tables: SwitchTables, limits: SwitchLimits, hold: bool) -> None:
        self.rings: dict[int, int] = {}  # ring id: row of `rings`
        self.parts: dict[int, RingPart] = {}
        self.retired: dict[str, int] = dict.fromkeys(RING_COUNTERS, 0)
        self._tables = tables
        self._limits = limits
        self._hold = hold
        self._connections = Ranges(tables.connections.size)
        self._slots = Ranges(tables.slots.size)
        self._copies = Ranges(tables.held.size)
        self._buffers = Ranges(tables.buffers.size)

    def register(self, part: RingPart) -> None:
        """Admit a ring, or what of it meets here. AdmissionError says what is wrong or lacking."""
        self._check_members(part)
        self.check_room(part)
        row = int(next(i for i in range(self._tables.rings.size) if not self._tables.rings[i].used))
        self._fill_ring(row, part)
        self._fill_connections(row, part)
        self._fill_outflows(row, part)
        self.rings[part.spec.ring_id], self.parts[part.spec.ring_id] = row, part
        self._rebuild_keys()

    def unregister(self, ring_id: int) -> None:
        """Forget a ring and free its ranges; KeyError if there is none of this id."""
        row = self.rings.pop(ring_id)
        del self.parts[ring_id]
        ring = self._tables.rings[row]
        for name in RING_COUNTERS:
            self.retired[name] += int(ring[name])
        slots = int(ring.message_count * ring.message_packets)
        copies = int(slots * ring.connection_count)
        self._connections.give(int(ring.first_connection), int(ring.connection_count))
        self._slots.give(int(ring.first_slot), slots)
        self._copies.give(int(ring.first_copy), copies)
        self._buffers.give(int(ring.first_buffer), int(copies * (HEADER_ROOM + ring.path_mtu)))
        self._tables.drops[-1] += self._tables.drops[row]
        self._tables.drops[row] = 0
        ring.used = 0
        self._rebuild_keys()

    def _check_members(self, part: RingPart) -> None:
        spec, name = part.spec, f"ring {part.spec.ring_id}"
        if spec.ring_id in self.rings:
            raise AdmissionError(f"{name} is registered already")
        if not 0 <= spec.ring_id <= RING_ID_MAX:
            raise AdmissionError(f"ring id {spec.ring_id} is not within 0 to {RING_ID_MAX}")
        if not 1 <= len(part.connections) <= RANKS_MAX:
            raise AdmissionError(f"{name} has {len(part.connections)} ranks, 1 to {RANKS_MAX} are allowed")
        if spec.geometry.path_mtu not in PATH_MTUS:
            raise AdmissionError(f"{name} has path_mtu {spec.geometry.path_mtu}, allowed are {PATH_MTUS}")
        for rank, endpoint in enumerate(spec.endpoints):
            if endpoint.rank != rank:
                raise AdmissionError(f"{name}: endpoint {rank} is that of rank {endpoint.rank}; rank order is needed")
            if part.ports.get(rank, (0, 0))[0] == NOBODY:
                raise AdmissionError(f"{name}: address {endpoint.ip} of rank {rank} is not attached to any port")
        used = {key for other in self.parts.values() for key, _, _ in _keys(other)}
        for key, _, place in _keys(part):
            if key in used:
                rank = part.connections[place]
                raise AdmissionError(f"{name}: rank {rank} shares a queue pair with another connection of a ring")
            used.add(key)

    def check_room(self, part: RingPart) -> None:
        """AdmissionError if the ring does not fit, with the figures."""
        spec, ranks, tables = part.spec, len(part.connections), self._tables
        if len(self.rings) == tables.rings.size:
            raise AdmissionError(f"all {tables.rings.size} rings of the switch are in use")
        if ranks > self._connections.largest:
            raise AdmissionError(
                f"ring of {ranks} ranks needs {ranks} connections in a row, {self._connections.largest} of "
                f"{tables.connections.size} are free"
            )
        slots, copies, size = _needs(part)
        if size > self._limits.ring_memory_bytes:
            raise AdmissionError(
                f"ring of {ranks} ranks needs {size / _MB:.1f} MB of aggregator memory, one ring may take "
                f"{self._limits.ring_memory_bytes / _MB:.1f} MB: lower message_window "
                f"({spec.geometry.message_window}) or message_packets ({spec.geometry.message_packets})"
            )
        fits = slots <= self._slots.largest and copies <= self._copies.largest and size <= self._buffers.largest
        if not fits:
            raise AdmissionError(
                f"ring of {ranks} ranks needs {size / _MB:.1f} MB of aggregator memory, "
                f"{self._buffers.largest / _MB:.1f} MB of {tables.buffers.size / _MB:.0f} MB are free in one piece: "
                f"lower message_window ({spec.geometry.message_window}) or message_packets "
                f"({spec.geometry.message_packets}), or give the switch more memory"
            )

    def _fill_ring(self, row: int, part: RingPart) -> None:
        tables, geometry = self._tables, part.spec.geometry
        ring = tables.rings[row]
        for name in ring.dtype.names:
            ring[name] = 0
        slots, copies, size = _needs(part)
        ring.used = 1
        ring.ring_id = part.spec.ring_id
        ring.child_count = len(part.children)
        ring.connection_count = len(part.connections)
        ring.pinned = part.pinned
        ring.message_count = 2 * geometry.message_window
        ring.message_packets = geometry.message_packets
        ring.path_mtu = geometry.path_mtu
        ring.hold = self._hold
        ring.first_shift = PATH_MTUS.index(geometry.path_mtu) * SHIFT_ENTRIES
        ring.first_connection = self._connections.take(len(part.connections))
        ring.first_outflow = row * OUTFLOWS
        ring.first_message = row * MESSAGES_MAX
        ring.first_slot = self._slots.take(slots)
        ring.first_copy = self._copies.take(copies)
        ring.first_buffer = self._buffers.take(size)
        tables.messages["message"][ring.first_message : ring.first_message + MESSAGES_MAX] = NOBODY

    def _fill_outflows(self, row: int, part: RingPart) -> None:
        """The outflows, and the Connection Translation Table: places of the connections that each one leaves on."""
        ring, tables = self._tables.rings[row], self._tables
        children, everybody = len(part.children), range(len(part.connections))
        out = everybody if part.leaving is None else [part.children.index(part.leaving)]
        rest = [place for place in everybody if place not in out]
        at = int(ring.first_connection)
        results = self._fill_pool(ring)
        for number, arrived, places in ((SUM, children, out), (TOTAL, children + 1, rest)):
            outflow = tables.outflows[ring.first_outflow + number]
            outflow.arrived, outflow.first_result = arrived, results[number]
            outflow.first_translation, outflow.translation_count = at, len(places)
            outflow.next_message = outflow.next_slot = 0
            for place in places:
                tables.translations[at] = ring.first_connection + place
                connection = tables.connections[ring.first_connection + place]
                connection.outflow, connection.translation = ring.first_outflow + number, at
                at += 1

    def _fill_pool(self, ring: np.record) -> tuple[int, int]:
        """Free all places for payloads of a ring; the bytes where its two kinds of results start."""
        slots, count = ring.message_count * ring.message_packets, ring.connection_count
        first_result = ring.first_buffer + slots * count * HEADER_ROOM
        results = slots * (1 + count - ring.child_count)
        first = first_result + results * ring.path_mtu
        ring.free_count = slots * count - results
        places = first + np.arange(ring.free_count)[::-1] * ring.path_mtu  # the last one is taken first
        self._tables.free[ring.first_copy : ring.first_copy + ring.free_count] = places
        return int(first_result), int(first_result + slots * ring.path_mtu)

    def _fill_connections(self, row: int, part: RingPart) -> None:
        tables = self._tables
        for place, rank in enumerate(part.connections):
            endpoint, _ = part.ends(rank)
            index = int(tables.rings[row].first_connection) + place
            connection = tables.connections[index]
            for name in connection.dtype.names:
                connection[name] = 0
            connection.ring = row
            connection.first_entry = index * MESSAGES_MAX
            connection.rank = rank
            connection.place = place
            connection.bit = _int64(1 << place)
            connection.port, connection.answer_port = part.ports[rank]
            connection.answer_qpn = endpoint.successor_qpn
            connection.newest = -1
            connection.next_psn = connection.unacknowledged_psn = connection.missing_psn = endpoint.first_psn
            connection.rnr_timer = RNR_TIMER_FIRST
            connection.owes_nak = 1
            connection.last_psn = psn_add(endpoint.first_psn, -1)

    def _rebuild_keys(self) -> None:
        """Fill the hash table anew: it has no deletion, and rings come and go rarely."""
        tables = self._tables
        tables.keys.role = ROLE_NONE
        count = 0
        for ring_id, part in self.parts.items():
            first = int(tables.rings[self.rings[ring_id]].first_connection)
            for key, role, place in _keys(part):
                row = -1 - int(find_key(tables.keys, *key))
                assert row >= 0, "keys are distinct"
                tables.keys[row] = (*key, role, first + place)
                count += 1
        tables.state[0].keys_used = count

    def release_port(self, port: int) -> None:
        """Nobody owns addresses at `port` any more: what arrives there is not aggregated."""
        for row in self.rings.values():
            ring = self._tables.rings[row]
            for index in range(int(ring.first_connection), int(ring.first_connection + ring.connection_count)):
                connection = self._tables.connections[index]
                if connection.port == port:
                    connection.port = NOBODY
                if connection.answer_port == port:
                    connection.answer_port = NOBODY


def _needs(part: RingPart) -> tuple[int, int, int]:
    """Slots, copies and bytes of buffer that the ring takes."""
    spec, count = part.spec, len(part.connections)
    return spec.rank_slots, count * spec.rank_slots, count * spec.rank_bytes


def _keys(part: RingPart) -> list[tuple[tuple[int, int, int, int, int], int, int]]:
    """Key, role and place of each connection's data and answers; a key as `find_key` takes it."""
    keys = []
    for place, rank in enumerate(part.connections):
        endpoint, successor = part.ends(rank)
        here, there = ip_halves(endpoint.ip), ip_halves(successor.ip)
        keys.append(((*here, *there, successor.predecessor_qpn), ROLE_DATA, place))
        keys.append(((*there, *here, endpoint.successor_qpn), ROLE_ACKNOWLEDGE, place))
    return keys
