"""The switch as a Node: frames in, frames out, counters, and notices for the control plane."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import JIT_DISABLED, entry
from netreduce.errors import AdmissionError, ConfigurationError
from netreduce.switch.forwarding import MULTICAST_BIT, find_mac, free_mac
from netreduce.switch.pipeline import take_burst
from netreduce.switch.registry import Registry, RingPart, RingSpec, ip_halves, ip_text
from netreduce.switch.routing import find_hop, free_hop
from netreduce.switch.tables import (
    MAC_ATTACHED,
    MAC_BEYOND,
    MAC_LEARNED,
    NOBODY,
    RING_COUNTERS,
    SwitchLimits,
    make_tables,
)
from netreduce.trace.events import DropReason, EventLog, make_event_log
from netreduce.units import NEVER_PS, PS_PER_S
from netreduce.wire.build import mac_bytes
from netreduce.wire.control import Mismatch, Waiting
from netreduce.wire.frames import QUEUE_STATE, FrameQueue
from netreduce.wire.ina import MESSAGE_ID_MASK, DataType, InaFlag, ReduceOp

GAP_POLICIES = ("pass", "hold")
_FORWARDING_COUNTERS = ("forwarded", "flooded", "filtered", "not_learned", "routed")


class Switch:
    """Forwards every frame as a learning bridge, and aggregates and splices those of registered rings.

    `name` is for messages; `port_count` ports, all up until `detach`; `limits` bound tables and queues; `events` is the
    log to write to, by default one that stays off; `gap_policy` "pass" or "hold", see aggregator.py. Not thread-safe:
    one thread drives a node.
    """

    def __init__(
        self,
        name: str,
        port_count: int,
        *,
        limits: SwitchLimits = SwitchLimits(),  # noqa: B008 (immutable)
        events: EventLog | None = None,
        gap_policy: str = "hold",
    ) -> None:
        if gap_policy not in GAP_POLICIES:
            raise ConfigurationError(f"gap_policy is {gap_policy!r}, allowed are {', '.join(GAP_POLICIES)}")
        self.name = name
        self.port_count = port_count
        self.memory_bytes = limits.memory_bytes
        self._egress_state = np.zeros(port_count, QUEUE_STATE).view(np.recarray)
        self.tables = make_tables(port_count, limits, self._egress_state, events or make_event_log())
        self.tables.ports.up = 1
        self._registry = Registry(self.tables, limits, hold=gap_policy == "hold")
        self._addresses: dict[str, tuple[int, int]] = {}  # attached IP: port, MAC
        self._told: set[int] = set()  # failed rings whose notice was handed out
        self._take_burst = entry(take_burst, self.tables, 0, np.empty(0, np.uint8), 0)
        if JIT_DISABLED:  # a peer's numbers may overflow: no concern of the switch, and compiled code never warns
            self._take_burst = np.errstate(over="ignore", invalid="ignore")(self._take_burst)

    # The node protocol (fabric/node.py).

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        """Take the frames of `burst` (uint8, whole records) from `port`; what can leave is queued at once."""
        if not (burst.flags.writeable and burst.flags.c_contiguous):
            burst = burst.copy()
        self._take_burst(self.tables, port, burst, now_ps)

    def advance(self, now_ps: int) -> None:
        """Nothing is due: the switch has no timers, and queues frames as they come."""

    def next_timer_ps(self) -> int:
        """Never: the switch has no timers."""
        return NEVER_PS

    def egress(self, port: int) -> FrameQueue:
        """The bounded queue of frames waiting to leave by `port`."""
        return FrameQueue(self.tables.egress_data[port], self._egress_state[port : port + 1])

    # The control plane.

    def attach(self, port: int, mac: str, ip: str) -> None:
        """Bring `port` up and let it own an address; a port may own several.

        Raises ConfigurationError if the port does not exist, another port owns the address, or no host can have it.
        """
        if not 0 <= port < self.port_count:
            raise ConfigurationError(f"port {port} does not exist, {self.name} has ports 0 to {self.port_count - 1}")
        number = _mac_number(mac)
        _require_ip(ip)
        for other_ip, (other_port, other_mac) in self._addresses.items():
            if other_port != port and (other_ip == ip or other_mac == number):
                raise ConfigurationError(f"address {ip} ({mac}) is attached to port {other_port} already")
        self._set_mac(number, port, MAC_ATTACHED)
        self.tables.ports[port].up = 1
        self._addresses[ip] = (port, number)

    def set_way(self, mac: str, port: int) -> None:
        """Send what is for `mac`, which is behind other switches, by `port`; from there it may come by any trunk."""
        self._set_mac(int.from_bytes(mac_bytes(mac), "big"), port, MAC_BEYOND)

    def forget_way(self, mac: str) -> None:
        """Undo `set_way`."""
        at = int(find_mac(self.tables.macs, int.from_bytes(mac_bytes(mac), "big"), 0))
        if at >= 0:
            self.tables.macs[at] = (0, 0, 0, 0)

    def set_trunk(self, port: int, *, floods: bool) -> None:
        """Say that another switch is at `port`, and whether frames may be flooded there without going in circles."""
        self.tables.ports[port].trunk, self.tables.ports[port].blocked = 1, not floods

    def _set_mac(self, number: int, port: int, kind: int) -> None:
        now_ps = 0
        at = int(find_mac(self.tables.macs, number, now_ps))
        if at < 0:
            at = int(free_mac(self.tables.macs, number, now_ps))
        if at < 0:
            raise ConfigurationError(f"the MAC table of {self.name} has no room for another address")
        self.tables.macs[at] = (number, port, now_ps, kind)

    def bring_up(self, port: int) -> None:
        """Let frames out by `port`, whose addresses are learned as they speak."""
        self.tables.ports[port].up = 1

    def route_at(self, port: int, mac: str) -> None:
        """Let `port` route instead of bridge: it takes frames to `mac`, and sends them on by `set_hop`."""
        self.tables.ports[port].mac = int.from_bytes(mac_bytes(mac), "big")

    def set_hop(self, ip: str, mac: str, port: int) -> None:
        """Route packets for `ip` to `mac` at `port`; `NOBODY` as the port says that it is the switch's own host.

        A table without room for it forgets nothing: such packets are dropped, and their next hop is asked for again.
        """
        high, low = ip_halves(ip)
        at = int(find_hop(self.tables.hops, high, low))
        if at < 0:
            at = int(free_hop(self.tables.hops, low))
        if at >= 0:
            self.tables.hops[at] = (high, low, int.from_bytes(mac_bytes(mac), "big"), port)

    def forget_hop(self, ip: str) -> None:
        """Ask for the next hop of `ip` again when a packet needs it."""
        at = int(find_hop(self.tables.hops, *ip_halves(ip)))
        if at >= 0:
            self.tables.hops[at] = (0, 0, 0, 0)

    def wanted_hops(self) -> list[str]:
        """Destinations, since the last call, of packets that were dropped because their next hop is not known."""
        count = int(self.tables.state[0].wanted)
        self.tables.state[0].wanted = 0
        return [ip_text(int(row.ip_high), int(row.ip_low)) for row in self.tables.wanted[:count]] if count else []

    def port_of(self, mac: str, now_ps: int) -> int | None:
        """The port behind which `mac` was seen, or is attached; None if it is unknown or was silent for too long.

        Raises ConfigurationError if no host can have the address.
        """
        at = int(find_mac(self.tables.macs, _mac_number(mac), now_ps))
        return None if at < 0 else int(self.tables.macs[at].port)

    def owns(self, ip: str) -> bool:
        """Whether `ip` is attached to a port."""
        return ip in self._addresses

    def let_go(self, ip: str, now_ps: int) -> None:
        """Undo `attach` for one address: its MAC address may move and age again. KeyError if it is not attached."""
        _, number = self._addresses.pop(ip)
        if any(number == other for _, other in self._addresses.values()):
            return  # a router's, behind which are more
        row = self.tables.macs[int(find_mac(self.tables.macs, number, now_ps))]
        row.fixed, row.seen_ps = MAC_LEARNED, now_ps

    def detach(self, port: int) -> None:
        """Unplug `port`: its addresses are free, its queue is emptied, what it sends is no longer aggregated."""
        self._addresses = {ip: owner for ip, owner in self._addresses.items() if owner[0] != port}
        macs = self.tables.macs
        macs[(macs.port == port) & (macs.mac != 0)] = (0, 0, 0, 0)
        self.tables.ports[port].up = self.tables.ports[port].mac = 0
        state = self._egress_state[port]
        state.head = state.tail = state.wrap = state.frames = state.bytes = 0
        self._registry.release_port(port)

    @property
    def attached_count(self) -> int:
        """How many ports have somebody attached."""
        return len({port for port, _ in self._addresses.values()})

    def register_ring(self, spec: RingSpec) -> None:
        """Aggregate the connections of a ring from now on. AdmissionError says why it cannot be."""
        ranks = range(len(spec.endpoints))
        ports = [self._addresses.get(endpoint.ip, (NOBODY, 0))[0] for endpoint in spec.endpoints]
        ends = {rank: (ports[rank], ports[(rank + 1) % len(ports)]) for rank in ranks}
        self._registry.register(RingPart(spec, tuple(ranks), ends, pinned=False))

    def register_part(self, part: RingPart) -> None:
        """Aggregate what of a ring meets here from now on. AdmissionError says why it cannot be."""
        self._registry.register(part)

    def fail_ring(self, ring_id: int) -> None:
        """Drop the data of a ring from now on: its ranks disagree, as another switch found. It may be gone already."""
        row = self._registry.rings.get(ring_id)
        if row is not None:
            self._told.add(ring_id)
            self.tables.rings[row].failed = 1

    def unregister_ring(self, ring_id: int) -> None:
        """Stop aggregating for a ring and free its memory. AdmissionError if it is not registered."""
        if ring_id not in self._registry.rings:
            raise AdmissionError(f"ring {ring_id} is not registered")
        self._registry.unregister(ring_id)
        self._told.discard(ring_id)

    # What the switch knows.

    def rings(self) -> dict[int, RingSpec]:
        """The registered rings by id."""
        return {ring_id: part.spec for ring_id, part in self._registry.parts.items()}

    def part(self, ring_id: int) -> RingPart:
        """What of a ring meets here. KeyError if it is not registered."""
        return self._registry.parts[ring_id]

    def notices(self) -> list[Mismatch]:
        """Rings that failed since the last call because two ranks disagree; each once."""
        if self.tables.state[0].failures == 0:
            return []
        found = []
        for ring_id, row in self._registry.rings.items():
            if self.tables.rings[row].failed and ring_id not in self._told:
                self._told.add(ring_id)
                found.append(self._mismatch(row))
        return found

    def _mismatch(self, row: int) -> Mismatch:
        ring = self.tables.rings[row]
        message = self.tables.messages[ring.first_message + ring.failed_message % ring.message_count]
        return Mismatch(
            ring_id=int(ring.ring_id),
            message_id=int(ring.failed_message) & MESSAGE_ID_MASK,
            rank_a=int(message.first_rank),
            description_a=describe(message.data_type, message.op, message.length_bytes, message.ina_flags),
            rank_b=int(ring.failed_rank),
            description_b=describe(
                ring.failed_data_type, ring.failed_op, ring.failed_length_bytes, ring.failed_ina_flags
            ),
        )

    def waiting(self, now_ps: int, longer_than_ps: int) -> list[Waiting]:
        """Messages of which some packet has waited longer than that for some ranks, and for which, oldest first."""
        found = []
        for ring_id, row in self._registry.rings.items():
            ring = self.tables.rings[row]
            first = int(ring.first_message)
            for message in self.tables.messages[first : first + int(ring.message_count)]:
                if ring.failed or message.message < 0 or message.complete == message.packets:
                    continue
                at = int(ring.first_slot + message.message % ring.message_count * ring.message_packets)
                slots = self.tables.slots[at : at + int(message.packets)]
                late = slots[(slots["arrived"] > 0) & (slots["arrived"] < ring.child_count)]
                late = late[now_ps - late["first_ps"] > longer_than_ps]
                if late.size:
                    have = int(np.bitwise_and.reduce(late["bitmap"]))
                    children = self._registry.parts[ring_id].children
                    missing = tuple(rank for place, rank in enumerate(children) if not have >> place & 1)
                    waited_s = (now_ps - int(late["first_ps"].min())) / PS_PER_S
                    found.append(Waiting(ring_id, int(message.message) & MESSAGE_ID_MASK, missing, waited_s))
        return sorted(found, key=lambda waiting: -waiting.waiting_s)

    def counters(self) -> dict[str, int]:
        """Totals since the start: frames, what rings did (those gone included), and drops by reason."""
        state, tables = self._egress_state, self.tables
        totals = {
            "packets_in": int(tables.ports.packets_in.sum()),
            "bytes_in": int(tables.ports.bytes_in.sum()),
            "packets_out": int(state.enqueued_frames.sum()),
            "bytes_out": int(state.enqueued_bytes.sum()),
            "egress_drops": int(state.dropped_frames.sum()),
            "peak_queue_bytes": int(state.peak_bytes.max(initial=0)),
        }
        totals |= {name: int(tables.state[0][name]) for name in _FORWARDING_COUNTERS}
        used = tables.rings[tables.rings.used != 0]
        totals |= {name: int(used[name].sum()) + self._registry.retired[name] for name in RING_COUNTERS}
        return totals | _drops(tables.drops.sum(axis=0))

    def ring_counters(self, ring_id: int) -> dict[str, int]:
        """What the switch did for one ring, and drops of its packets by reason. KeyError if it is not registered."""
        row = self._registry.rings[ring_id]
        drops = self.tables.drops[row]
        counters = {name: int(self.tables.rings[row][name]) for name in RING_COUNTERS}
        return counters | {"icrc_failures": int(drops[DropReason.BAD_ICRC])} | _drops(drops)

    def port_counters(self, port: int) -> dict[str, int]:
        """Frames and bytes of one port in both directions, and its queue."""
        row, state = self.tables.ports[port], self._egress_state[port]
        return {
            "packets_in": int(row.packets_in),
            "bytes_in": int(row.bytes_in),
            "packets_out": int(state.enqueued_frames),
            "bytes_out": int(state.enqueued_bytes),
            "egress_drops": int(state.dropped_frames),
            "queue_bytes": int(state.bytes),
            "peak_queue_bytes": int(state.peak_bytes),
        }


def _mac_number(mac: str) -> int:
    """A host's MAC address as a number. ConfigurationError if `mac` is none, or that of a group, or zero."""
    try:
        number = int.from_bytes(mac_bytes(mac), "big")
    except ValueError as error:
        raise ConfigurationError(f"MAC address {mac!r}: {error}; write it as 02:00:00:00:00:01") from error
    if number == 0 or number & MULTICAST_BIT:
        raise ConfigurationError(f"MAC address {mac}: no host can have it")
    return number


def _require_ip(ip: str) -> None:
    try:
        ip_halves(ip)
    except ValueError as error:
        raise ConfigurationError(f"IP address {ip!r}: {error}") from error


def _drops(counts: np.ndarray) -> dict[str, int]:
    return {f"drop_{reason.name.lower()}": int(counts[reason]) for reason in DropReason if counts[reason]}


def describe(data_type: int, op: int, length_bytes: int, flags: int) -> str:
    """A message in words, such as ``float32 sum, 65,536 bytes, last message``."""
    places = {
        0: "middle message",
        InaFlag.START.value: "first message",
        InaFlag.END.value: "last message",
        InaFlag.START.value | InaFlag.END.value: "only message",
    }
    verb = "average" if flags & InaFlag.AVERAGE else ReduceOp(op).name.lower()
    place = places[int(flags) & (InaFlag.START | InaFlag.END)]
    return f"{DataType(data_type).name.lower()} {verb}, {int(length_bytes):,} bytes, {place}"
