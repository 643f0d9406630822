"""Conservation: what every run of the flow simulator must fulfil, checked while it runs. A breach is an error."""

from __future__ import annotations

import numpy as np

from netreduce.errors import NetReduceError
from netreduce.flowsim.flows import Floats

RELATIVE_ERROR = 1e-9
"""Rounding of a run of some million events stays well below this."""


class ConservationError(NetReduceError):
    """A run broke a law of conservation: its result is worthless, and the simulator has a fault worth reporting."""


class StalledError(NetReduceError):
    """Flows are left that no link will ever carry, such as flows over a failed link."""


def check_capacity(load: Floats, capacity: Floats) -> None:
    """No link carries more than its capacity: float64[links] each, bytes a second."""
    if np.all(load <= capacity * (1 + RELATIVE_ERROR)):
        return
    worst = int(np.argmax(load - capacity))
    raise ConservationError(
        f"link {worst} carries {load[worst]:.6g} B/s but its capacity is {capacity[worst]:.6g} B/s: please report this"
    )


def check_carried(carried_bytes: Floats, offered_bytes: Floats) -> None:
    """Bytes in are bytes out: the time integral of each link's load is what its flows had to send."""
    error = np.abs(carried_bytes - offered_bytes)
    if np.all(error <= RELATIVE_ERROR * np.maximum(offered_bytes, 1.0)):
        return
    worst = int(np.argmax(error))
    raise ConservationError(
        f"link {worst} carried {carried_bytes[worst]:.9g} B of {offered_bytes[worst]:.9g} B offered: please report this"
    )


def check_bus_bandwidth(bus_bandwidth: float, link_rate: float, what: str) -> None:
    """Point-to-point schemes cannot exceed the link in nccl-tests' busbw (its definition makes that the hardware's
    bound).

    Both in bytes a second. In-network schemes may exceed it, because they send each byte once.
    """
    if bus_bandwidth > link_rate * (1 + RELATIVE_ERROR):
        raise ConservationError(
            f"{what}: bus bandwidth {bus_bandwidth / 1e9:.6g} GB/s exceeds the link's {link_rate / 1e9:.6g} GB/s:"
            " please report this"
        )
