"""The message window of the in-network path: how far a rank may run ahead (NetReduce, ASPLOS 2023, flow control).

Message k may leave when message k-N has been both received and acknowledged. Received, so that the switch need not hold
more than the last 2N messages: whoever sends message k proves that all ranks hold message k-2N, for k-N could only be
combined after every rank had sent it, and each of them had received k-2N by then. Acknowledged, so that this rank will
not send message k-N again.
"""

from __future__ import annotations

from netreduce.wire.ina import MESSAGE_ID_MASK


class MessageWindow:
    """Counts of messages of one ring, from its first on; they only grow. Message k is the k-th posted, from 0."""

    __slots__ = ("acknowledged", "completed", "posted", "received", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.posted = 0
        self.received = 0
        self.acknowledged = 0
        self.completed = 0

    @property
    def may_post(self) -> bool:
        """Whether the next message may leave now."""
        return self.posted - self.completed < self.size

    @property
    def in_flight(self) -> int:
        """Messages that were posted and are not complete."""
        return self.posted - self.completed

    def post(self) -> int:
        """Count one more message; returns its number."""
        assert self.may_post
        self.posted += 1
        return self.posted - 1

    def receive(self) -> int:
        """The oldest outstanding result has arrived; returns its number."""
        assert self.received < self.posted
        self.received += 1
        return self.received - 1

    def acknowledge(self) -> int:
        """The successor has acknowledged the oldest outstanding message; returns its number."""
        assert self.acknowledged < self.posted
        self.acknowledged += 1
        return self.acknowledged - 1

    def complete(self) -> range:
        """The messages that are received and acknowledged since the last call: they are done with."""
        done = range(self.completed, min(self.received, self.acknowledged))
        self.completed = max(self.completed, done.stop)
        return done

    @staticmethod
    def message_id(number: int) -> int:
        """The number as the INA header carries it: 32 bits, modular."""
        return number & MESSAGE_ID_MASK
