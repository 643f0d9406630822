"""A switch and its workers inside the test's own process: each rank is a thread, sockets and switch are real."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from netreduce.runtime.cable import listen, new_address
from netreduce.runtime.clock import Clock
from netreduce.runtime.communicator import Communicator
from netreduce.runtime.live_faults import LiveFaults
from netreduce.runtime.server import SwitchServer
from netreduce.switch import Switch

PORTS = 4


@contextlib.contextmanager
def served(switch: Switch | None = None, faults: LiveFaults | None = None) -> Iterator[str]:
    """A switch server on a thread, with `faults` on its links; yields its address."""
    address = new_address()
    owner, server_end = socket.socketpair()
    with listen(address) as listener, owner, server_end:
        server = SwitchServer(switch or Switch("switch", PORTS), listener, Clock(), faults=faults)
        server.watch_owner(server_end.fileno())
        thread = threading.Thread(target=server.run)
        thread.start()
        yield address
        owner.close()
        thread.join(60)
        assert not thread.is_alive()
        server.close()


def on_all_ranks(
    address: str,
    world_size: int,
    function: Callable[[Communicator], Any],
    machines: Sequence[str] = (),
    **options: Any,
) -> list[Any]:
    """``function(communicator)`` on each rank of a fresh group; the results in rank order. Rank r is on machines[r]."""
    options = {"timeout_s": 20, **options}

    def one(rank: int) -> Any:
        machine = machines[rank] if machines else ""
        with Communicator.connect(address, rank, world_size, machine=machine, **options) as world:
            return function(world)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size)))
