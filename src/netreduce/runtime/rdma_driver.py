"""An RDMA device of a worker. It moves data by itself; the progress thread only looks for what it has completed.

Clear-to-send slots come by RDMA WRITE and raise no event, so there is nothing to sleep on: the thread looks again and
again for a short while after something has happened, as NCCL's does, and then once a millisecond.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from netreduce.runtime.address import DISCARD_PORT
from netreduce.runtime.clock import Clock
from netreduce.runtime.driver import Attachment, roce_words
from netreduce.runtime.plug import present
from netreduce.runtime.rdma import Context
from netreduce.runtime.rdma_ports import Gid, RdmaPort, hardware_counters
from netreduce.units import NEVER_PS, PS_PER_MS, PS_PER_US
from netreduce.wire import control

if TYPE_CHECKING:
    from netreduce.runtime.nic_driver import NicRound

SPIN_PS = 200 * PS_PER_US
"""How long after the last movement the thread does not sleep: some round trips through a switch in software."""
PAUSE_PS = PS_PER_MS


def attach_rdma(address: str, worker: str, port: RdmaPort, gid: Gid) -> Attachment:
    """An `RdmaDriver` on the network of the switch at `address`."""
    driver = RdmaDriver(Context(port, gid))
    try:
        _announce(gid)
        channel, _ = present(address, worker, driver.context.mac, driver.context.ip)
    except BaseException:
        driver.close()
        raise
    return Attachment(driver, channel, Clock(), roce_words(gid.address, gid.interface, driver.path_mtu))


def _announce(gid: Gid) -> None:
    """Send a datagram to nobody, by which the switch learns where the interface's MAC address is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        # Old kernels let root alone bind to an interface; then the connection to the switch must do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, gid.interface.encode())
        probe.bind((gid.address, 0))
        probe.sendto(b"", ("255.255.255.255", DISCARD_PORT))


class RdmaDriver:
    """A `Driver` of an open RDMA device."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.path_mtu = context.path_mtu
        self.round: NicRound | None = None
        self._counted = hardware_counters(context.port)

    def take(self, now_ps: int) -> tuple[int, bool, bool]:
        """Nothing: the device takes what arrives."""
        return now_ps, False, False

    def give(self, now_ps: int) -> bool:
        """Nothing."""
        return False

    def be_patient(self, is_patient: bool) -> None:
        """Nothing: the device acknowledges as it likes."""

    def watch(self, inbox: select.epoll) -> None:
        """Nothing."""

    def rest(self, now_ps: int, moved_ps: int, busy: bool) -> int:
        """At once, soon, or, when no operation is under way, never: nothing wakes it but time."""
        if not busy:
            return NEVER_PS
        return now_ps if now_ps - moved_ps < SPIN_PS else now_ps + PAUSE_PS

    def wake(self) -> None:
        """Nothing."""

    def learn(self, endpoints: Iterable[control.Endpoint]) -> None:
        """Nothing: the kernel finds out MAC addresses."""

    def counters(self) -> dict[str, int]:
        """What the device has counted since this worker opened it, for all its users."""
        return {
            name: count - self._counted.get(name, 0) for name, count in hardware_counters(self.context.port).items()
        }

    def close(self) -> None:
        """Close the device."""
        self.context.close()
