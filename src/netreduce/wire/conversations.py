"""What follows from the frames before: retransmissions, gaps, and the INA message of each packet.

A capture at a switch sees a packet twice, coming in by one port and going out by another; PSNs are therefore followed
per connection, port and direction. Only the first packet of a message carries the INA header; the others are found by
their PSN, exactly as the switch's connection lookup table finds them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np

from netreduce.wire.dissect import FrameView
from netreduce.wire.ina import ELEMENT_BYTES, INA_BYTES, INA_HEADER, INA_VERSION, DataType, InaFlag, ReduceOp
from netreduce.wire.opcodes import Opcode, Role
from netreduce.wire.psn import PSN_MASK, psn_distance

CONNECTIONS_MAX = 1 << 16
"""Connections that are followed; frames of further ones are shown on their own."""
MESSAGES_KEPT = 256
"""Newest messages that each connection remembers: twice the largest message window, and more."""
RESTART_DISTANCE = 1 << 16
"""A PSN farther than this from the expected one means a new connection under an old number, not a loss."""
_REQUEST = Role.SEND | Role.WRITE | Role.READ | Role.ATOMIC
_RANKS_MAX = 64


class ConnectionKey(NamedTuple):
    """One direction of a queue pair, as the wire shows it."""

    source_ip: str
    destination_ip: str
    destination_qpn: int


class InaMessage(NamedTuple):
    """One message of a connection that carries an INA header."""

    ring_id: int
    rank: int
    message_id: int
    length_bytes: int
    first_psn: int
    packets: int
    text: str  # dtype, operation, length, flags


class Connection:
    """What was seen of one connection."""

    def __init__(self) -> None:
        self.messages: deque[InaMessage] = deque(maxlen=MESSAGES_KEPT)
        self.expected_psn: dict[tuple[str, str], int] = {}  # by port and direction

    def message_of(self, psn: int) -> InaMessage | None:
        """The newest message whose PSN range holds `psn`."""
        for message in reversed(self.messages):
            if (psn - message.first_psn) & PSN_MASK < message.packets:
                return message
        return None


def read_ina_header(payload: bytes, psn: int, is_whole: bool, packet_bytes: int) -> InaMessage | None:
    """The message that a first packet opens, or None if its payload does not start with an INA header.

    `is_whole`: the packet is the message's only one. `packet_bytes` is its payload length, which is the path MTU
    otherwise. Ordinary data passes the checks about once in 2^40.
    """
    if len(payload) < INA_BYTES:
        return None
    header = np.frombuffer(payload, INA_HEADER, 1)[0]
    ring_id, rank, message_id, length_bytes, dtype, op, version, flags = header.tolist()
    element_bytes = int(ELEMENT_BYTES[dtype])
    total_bytes = INA_BYTES + length_bytes
    if version != INA_VERSION or not element_bytes or op not in set(ReduceOp) or flags > sum(InaFlag):
        return None
    fits = total_bytes == packet_bytes if is_whole else total_bytes > packet_bytes
    if rank >= _RANKS_MAX or length_bytes % element_bytes or not fits:
        return None
    marks = "".join(f" {flag.name}" for flag in InaFlag if flag & flags and flag.name).lower()
    text = f"{DataType(dtype).name} {ReduceOp(op).name} {length_bytes} B".lower().replace(" b", " B") + marks
    packets = -(-total_bytes // packet_bytes)
    return InaMessage(ring_id, rank, message_id, length_bytes, psn, packets, text)


class Conversations:
    """Follows connections through a capture and completes the views of their frames."""

    def __init__(self) -> None:
        self.connections: dict[ConnectionKey, Connection] = {}
        self._by_addresses: defaultdict[tuple[str, str], list[Connection]] = defaultdict(list)

    def follow(self, view: FrameView, payload: bytes) -> None:
        """Take the next frame's view and payload; fills in what only the frames before can tell."""
        if view.opcode < 0 or view.problem:
            return
        key = ConnectionKey(view.source_ip, view.destination_ip, view.destination_qpn)
        connection = self.connections.get(key)
        if view.icrc == "bad":
            if connection is not None:
                _name_message(view, connection.message_of(view.psn))  # as far as a damaged packet can be believed
            return
        if view.opcode == Opcode.ACKNOWLEDGE:
            self._acknowledge(view)
        if not view.roles & _REQUEST:
            return
        if connection is None:
            if len(self.connections) == CONNECTIONS_MAX:
                return
            connection = self.connections[key] = Connection()
            self._by_addresses[key.source_ip, key.destination_ip].append(connection)
        self._check_sequence(connection, view)
        if view.roles & (Role.SEND | Role.WRITE):
            self._find_message(connection, view, payload)

    def _check_sequence(self, connection: Connection, view: FrameView) -> None:
        place = view.port, view.direction
        distance = psn_distance(view.psn, connection.expected_psn.get(place, view.psn))
        if 0 < distance < RESTART_DISTANCE:
            view.gap = distance
        if -RESTART_DISTANCE < distance < 0:
            view.retransmitted = True
        elif view.roles & Role.READ:
            # The answer's packets take PSNs of the request's: the next one cannot be foretold without the path MTU.
            connection.expected_psn.pop(place, None)
        else:
            connection.expected_psn[place] = (view.psn + 1) & PSN_MASK

    def _find_message(self, connection: Connection, view: FrameView, payload: bytes) -> None:
        if view.roles & Role.START:
            message = read_ina_header(payload, view.psn, bool(view.roles & Role.END), view.payload_bytes)
            if message is not None:
                view.ina_header = message.text
                if message not in connection.messages:
                    connection.messages.append(message)
        _name_message(view, connection.message_of(view.psn))

    def _acknowledge(self, view: FrameView) -> None:
        """Name the message that an acknowledgement is about, if only one connection of its peers can be meant."""
        candidates = self._by_addresses.get((view.destination_ip, view.source_ip), [])
        messages = [message for connection in candidates if (message := connection.message_of(view.psn))]
        if len(messages) == 1:
            _name_message(view, messages[0])
            view.acknowledges = True


def _name_message(view: FrameView, message: InaMessage | None) -> None:
    if message is not None:
        view.ring_id, view.rank, view.message_id = message.ring_id, message.rank, message.message_id
        view.slot, view.message_packets = (view.psn - message.first_psn) & PSN_MASK, message.packets
