"""What collectives need of verbs: the embedded NIC is one provider, RDMA devices of the kernel are another.

Records (work requests, attributes, completions) and constants are those of `netreduce.nic.verbs` for all providers.
What stands for something in a NIC is made by the classes of `Context.verbs`, which have pyverbs' names.
"""

from __future__ import annotations

from typing import Any, Protocol

from netreduce.nic.verbs import WC, QPAttr, QPInitAttr, RecvWR, SendWR


class Resource(Protocol):
    """Something in a NIC."""

    def close(self) -> None:
        """Give it back."""


class Context(Protocol):
    """A NIC's port, and its addresses on the network."""

    ip: str
    mac: str

    @property
    def verbs(self) -> Verbs:
        """The provider's classes, which take this context and what was made from it."""


class PD(Resource, Protocol):
    """A protection domain."""

    @property
    def verbs(self) -> Verbs:
        """As `Context.verbs`."""


class MR(Resource, Protocol):
    """A memory region."""

    lkey: int
    rkey: int


class CQ(Resource, Protocol):
    """A completion queue."""

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Up to `num_entries` completions, oldest first, and their number."""


class QP(Resource, Protocol):
    """A Reliable Connection queue pair."""

    qp_num: int

    def to_init(self, attr: QPAttr) -> None:
        """RESET to INIT."""

    def to_rtr(self, attr: QPAttr) -> None:
        """INIT to RTR."""

    def to_rts(self, attr: QPAttr) -> None:
        """RTR to RTS."""

    def modify(self, attr: QPAttr, mask: int) -> None:
        """Set the attributes in `mask`."""

    def post_send(self, wr: SendWR) -> None:
        """Queue a send work request, whose elements lie in registered memory."""

    def post_recv(self, wr: RecvWR) -> None:
        """Queue a receive work request."""


class Verbs(Protocol):
    """A provider's classes. All raise `VerbsError` when they are refused."""

    def PD(self, creator: Any) -> PD:
        """A protection domain of a context."""

    def CQ(self, context: Any, cqe: int) -> CQ:
        """A completion queue for `cqe` completions."""

    def MR(self, creator: Any, length: int, access: int, address: int) -> MR:
        """`length` bytes at `address`, registered in a protection domain. Whoever makes it keeps the memory alive."""

    def QP(self, creator: Any, init_attr: QPInitAttr) -> QP:
        """A queue pair in a protection domain."""
