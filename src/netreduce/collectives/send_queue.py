"""The send queue of one queue pair: what was posted, what of it is signaled, and how much room is left.

Only signaled work requests complete. Since a queue pair completes in order, one completion retires all requests before
it too; so unsignaled requests need a signaled one behind them now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from netreduce.collectives.provider import QP
from netreduce.nic.verbs import IBV_SEND_SIGNALED, SGE, SendWR


class SendQueue:
    """Posts RDMA writes on `qp`, at most `depth` at a time."""

    __slots__ = ("_depth", "_posted", "_qp", "_retired", "_signaled")

    def __init__(self, qp: QP, depth: int) -> None:
        self._qp = qp
        self._depth = depth
        self._posted = 0
        self._retired = 0
        self._signaled: deque[tuple[int, Callable[[], None] | None]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether one more request can be posted."""
        return self._posted - self._retired < self._depth

    def write(
        self,
        opcode: int,
        local: tuple[int, int, int],
        remote: tuple[int, int],
        *,
        immediate: int = 0,
        signaled: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Post a write from `local` (address, length, lkey) to `remote` (address, rkey).

        `done` runs when it completes, for which it must be signaled.
        """
        sges = [SGE(*local)] if local[1] else []
        request = SendWR(
            wr_id=self._posted,
            opcode=opcode,
            num_sge=len(sges),
            imm_data=immediate,
            sg=sges,
            send_flags=IBV_SEND_SIGNALED if signaled else 0,
        )
        request.set_wr_rdma(remote[1], remote[0])
        self._qp.post_send(request)
        if signaled:
            self._signaled.append((self._posted, done))
        self._posted += 1

    def complete(self, wr_id: int) -> None:
        """Take the completion of the oldest signaled request."""
        number, done = self._signaled.popleft()
        assert number == wr_id, (number, wr_id)
        self._retired = number + 1
        if done is not None:
            done()
