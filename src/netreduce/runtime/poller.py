"""Epoll with one handler per descriptor."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT


class Poller:
    """Calls ``handler(mask)`` for each ready descriptor. A handler may watch and unwatch any descriptor, its own too.

    A descriptor's number may be reused within one `poll`, so a handler must bear being called for nothing.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def __len__(self) -> int:
        return len(self._handlers)

    def fileno(self) -> int:
        """The epoll's own descriptor: whoever waits for it himself calls `poll` afterwards."""
        return self._epoll.fileno()

    def watch(self, descriptor: int, handler: Callable[[int], None]) -> None:
        """Call `handler` when `descriptor` is readable or hung up."""
        self._epoll.register(descriptor, READABLE)
        self._handlers[descriptor] = handler

    def await_room(self, descriptor: int, waiting: bool, *, readable: bool = True) -> None:
        """Call the handler of `descriptor` also when it is writable, or no longer; unless `readable`, only then."""
        self._epoll.modify(descriptor, (READABLE if readable else 0) | (WRITABLE if waiting else 0))

    def unwatch(self, descriptor: int) -> None:
        """Forget `descriptor`, which is still open."""
        del self._handlers[descriptor]
        self._epoll.unregister(descriptor)

    def poll(self, timeout_s: float, gather_s: float = 0.0) -> None:
        """Wait until something is ready, at most `timeout_s` (negative: for ever), and call its handlers.

        Then more may gather for `gather_s`.
        """
        ready = self._epoll.poll(timeout_s)
        if ready and gather_s:
            time.sleep(gather_s)
            ready = self._epoll.poll(0)
        for descriptor, mask in ready:
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler(mask)

    def close(self) -> None:
        """Forget everything."""
        self._handlers.clear()
        self._epoll.close()
