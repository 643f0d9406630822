"""Messages of the control channel between workers and the switch: JSON, validated by msgspec, one per datagram.

A worker attaches a cable, joins groups, and hears of trouble. The switch is also the rendezvous: once all ranks of a
group have joined, it registers their ring and tells each of them all endpoints.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

CONTROL_BYTES_MAX = 256 * 1024
"""Longest control message; longer ones are refused unread."""
RANKS_MAX = 64
"""Largest ring: a slot's bitmap is one 64-bit word."""

Qpn = Annotated[int, Meta(ge=0, lt=1 << 24)]
Psn = Annotated[int, Meta(ge=0, lt=1 << 24)]
COUNT_MAX = (1 << 63) - 1
"""Largest count that a message carries."""
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Address = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
RemoteKey = Annotated[int, Meta(ge=0, lt=1 << 32)]
Rank = Annotated[int, Meta(ge=0, lt=RANKS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
MachineName = Annotated[str, Meta(max_length=200)]
DESCRIPTION_MAX = 1000
Description = Annotated[str, Meta(max_length=DESCRIPTION_MAX)]


PATH_MTUS = (256, 512, 1024, 2048, 4096)
"""Payload bytes of a packet, as IBTA has them."""


class Geometry(Struct, frozen=True):
    """What all ranks of a ring must agree on."""

    message_window: Annotated[int, Meta(ge=1, le=64)] = 4
    message_packets: Annotated[int, Meta(ge=1, le=1024)] = 124
    path_mtu: Annotated[int, Meta(ge=256, le=4096)] = 4096

    @property
    def message_data_bytes(self) -> int:
        """Data bytes of a full message: its packets' payloads without the INA header."""
        return self.message_packets * self.path_mtu - 16


class Endpoint(Struct, frozen=True):
    """One rank's addresses and queue pairs, as its peers and the switch need them."""

    rank: Rank
    ip: str
    mac: str
    successor_qpn: Qpn  # the queue pair that sends to the successor: its data is aggregated
    predecessor_qpn: Qpn  # the queue pair that receives from the predecessor
    first_psn: Psn  # PSN of the first packet to the successor
    peer_qpns: tuple[tuple[Qpn, ...], ...] = ()  # per peer rank: the queue pairs of point-to-point traffic; own: none
    peer_psns: tuple[Psn, ...] = ()  # per peer rank: the first PSN on all these
    fifo_addresses: tuple[Address, ...] = ()  # per peer rank: where that peer writes its clear-to-send slots
    fifo_rkeys: tuple[RemoteKey, ...] = ()
    splits_data: bool = False  # whether point-to-point data is split over the queue pairs of a connection
    machine: MachineName = ""  # ranks of equal name are on one machine; empty: it does not say
    door: MachineName = ""  # where the other ranks of its machine can connect


class Attach(Struct, tag=True):
    """First message on a cable: plug it into the switch, at `port` if that is free. Answered by `Attached`."""

    worker: Name
    token: str = ""
    port: Annotated[int, Meta(ge=-1, le=COUNT_MAX)] = -1  # -1: at any


class Attached(Struct, tag=True):
    """The cable's port and the addresses that its NIC takes."""

    port: int
    mac: str
    ip: str
    epoch_ns: int  # the fabric's time zero on the machine's monotonic clock: frames are stamped relative to it
    gateway: str = ""  # MAC address of a switch that routes: all frames go to it


class Present(Struct, tag=True):
    """First message of a worker that has a NIC of its own on the switch's network. Answered by `Attached`.

    It reaches the switch over TCP, and goes on as the control connection. A frame of this `mac` has crossed the switch
    before, so that the switch knows its port.
    """

    worker: Name
    mac: Name
    ip: Name
    token: str = ""


class Hello(Struct, tag=True):
    """First message on a control connection: which port's worker speaks. Answered by `Ok`.

    An observer, which only asks for statistics, says port -1.
    """

    port: Annotated[int, Meta(ge=-1, lt=1 << 16)]
    worker: Name
    pid: int
    token: str = ""


class Join(Struct, tag=True):
    """A rank enters a group. Answered by `Joined` or `Refused` when all ranks have come."""

    group: Name
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    endpoint: Endpoint
    geometry: Geometry


class Gathering(Struct, tag=True):
    """A group is not complete yet: these ranks have not joined, since `waiting_s` seconds. Sent to those that have."""

    group: str
    missing_ranks: tuple[int, ...]
    waiting_s: float


class Joined(Struct, tag=True):
    """The ring is registered; these are its members, in rank order."""

    group: Name
    ring_id: int
    endpoints: tuple[Endpoint, ...]


class Ready(Struct, tag=True):
    """This rank's queue pairs can receive. Answered by `Go` when all ranks' can."""

    ring_id: int


class Go(Struct, tag=True):
    """All ranks can receive: sending may start."""

    ring_id: int


class Leave(Struct, tag=True):
    """This rank has finished with the ring. Answered by `Closed` when all ranks have."""

    ring_id: int


class Left(Struct, tag=True):
    """Another rank has finished with the ring, in good order; nothing more will come from it."""

    ring_id: int
    rank: int


class Closed(Struct, tag=True):
    """All ranks have left; the ring is no more, and nobody needs this rank's acknowledgements any longer."""

    ring_id: int


class Report(Struct, tag=True):
    """Counters of a worker's NIC and engines, sent before it unplugs, for the run's summary."""

    counters: Annotated[dict[Name, Count], Meta(max_length=256)]


class Refused(Struct, tag=True):
    """A request could not be granted; `reason` is for the user. `lost_rank` is that of a rank whose loss it was."""

    group: str
    reason: str
    lost_rank: int = -1


class Withdraw(Struct, tag=True):
    """This rank no longer waits for a group to be complete, or to be ready."""

    group: Name


class Failed(Struct, tag=True):
    """This rank's connections have failed: the ring is of no use any more. The others hear of it by `PeerLost`."""

    ring_id: int
    reason: Description


class Stuck(Struct, tag=True):
    """A rank has waited for `waiting_s` seconds in its call `sequence` (-1 for a send or receive).

    All ranks' call of that number must be this one. Between hosts, `waits_for` are the ranks that owe it something.
    """

    ring_id: int
    sequence: Annotated[int, Meta(ge=-1, le=COUNT_MAX)]
    call: Description
    waits_for: Annotated[tuple[Rank, ...], Meta(max_length=RANKS_MAX)]
    waiting_s: float


class PeerLost(Struct, tag=True):
    """A rank died, or left while others still needed it."""

    ring_id: int
    rank: int
    reason: str


BETWEEN_PEERS = -1
"""Message id of a mismatch that is about no message of the ring."""


class Mismatch(Struct, tag=True):
    """Two ranks disagree about a message; descriptions name length, dtype and operation.

    The switch tells all ranks of a mismatch that it finds. One that two ranks find between themselves they tell the
    switch, and it the others.
    """

    ring_id: int
    message_id: int
    rank_a: Rank
    description_a: Description
    rank_b: Rank
    description_b: Description


class Waiting(Struct, tag=True):
    """A message waits: some ranks have sent it, others have not, since `waiting_s` seconds.

    `message_id` is `BETWEEN_PEERS` for a call between hosts: the missing ranks are those that keep this one waiting.
    """

    ring_id: int
    message_id: int
    missing_ranks: tuple[int, ...]
    waiting_s: float


class Register(Struct, tag=True):
    """An observer asks for a ring of endpoints that do not speak to the switch. Answered by `Registered` or `Refused`.

    A `ring_id` of 0 lets the switch choose. Frames of each endpoint's `mac` have crossed the switch before.
    """

    endpoints: Annotated[tuple[Endpoint, ...], Meta(min_length=1, max_length=RANKS_MAX)]
    geometry: Geometry
    ring_id: Annotated[int, Meta(ge=0, lt=1 << 16)] = 0


class Registered(Struct, tag=True):
    """The ring sums from now on, until it is unregistered or the switch ends."""

    ring_id: int


class Unregister(Struct, tag=True):
    """An observer asks to end a ring that was registered by `Register`. Answered by `Ok` or `Refused`."""

    ring_id: int


class RingsRequest(Struct, tag=True):
    """An observer asks which rings there are. Answered by `Rings`."""


class RingState(Struct, frozen=True):
    """One ring: what it is called, who is in it, and its counters."""

    ring_id: int
    group: str
    geometry: Geometry
    endpoints: tuple[Endpoint, ...]
    counters: dict[str, int]


class Rings(Struct, tag=True):
    """All rings, in the order of their ids."""

    rings: tuple[RingState, ...]


class StatisticsRequest(Struct, tag=True):
    """Ask for the switch's counters. Answered by `Statistics`."""


class Statistics(Struct, tag=True):
    """Counters of the switch, by name; `rings` by ring id, `ports` by port number.

    `workers` are the sums of what the workers that have left reported; `faults` says how often each fault that was
    asked for has struck.
    """

    counters: dict[str, int]
    workers: dict[str, int]
    rings: dict[str, dict[str, int]]
    ports: dict[str, dict[str, int]]
    faults: dict[str, int] = {}


class Mate(Struct, tag=True):
    """First message between two ranks of one machine, with a descriptor of the memory that the sender fills."""

    ring_id: int
    rank: Rank


class Wanted(Struct, tag=True):
    """A rank asks its mate to send: request number `index`, from 1, of `size_bytes` under `tag`."""

    index: Count
    tag: Count
    fingerprint: Count
    size_bytes: Count


class Filled(Struct, tag=True):
    """The next place of the shared memory holds the next `length` bytes of what request `index` asked for."""

    index: Count
    length: Count


class Freed(Struct, tag=True):
    """The oldest filled place is empty again."""


class Declined(Struct, tag=True):
    """Request `index` meets something else: what the other side would have sent."""

    index: Count
    fingerprint: Count
    size_bytes: Count


class Ok(Struct, tag=True):
    """Done."""


Message = (
    Attach | Attached | Present | Hello | Join | Gathering | Joined | Ready | Go | Leave | Left | Closed | Report
    | Withdraw | Failed | Stuck
    | Refused | PeerLost | Mismatch | Waiting | Register | Registered | Unregister | RingsRequest | Rings
    | StatisticsRequest | Statistics | Mate | Wanted | Filled | Freed | Declined | Ok
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """The datagram for `message`."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in a datagram; `msgspec.ValidationError` or `msgspec.DecodeError` if it is none."""
    if len(data) > CONTROL_BYTES_MAX:
        raise msgspec.ValidationError(f"control message of {len(data)} bytes, at most {CONTROL_BYTES_MAX} are allowed")
    return _decoder.decode(data)
