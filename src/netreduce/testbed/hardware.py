"""What a testbed is built from, and which all-reduces run on it. All is checked when an object is made.

Delays are one way. A switch's latency counts half on each of its cables, so that a frame that passes it is late by all
of it; NICs and hosts have none of their own, so a cable's delay includes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from netreduce.collectives.algorithms import Algorithm
from netreduce.errors import ConfigurationError
from netreduce.wire.control import RANKS_MAX, Geometry

MEMORY_BYTES_MAX = 16_000_000_000
"""Most bytes of the arrays of all workers: they are real."""
GEOMETRY = Geometry(message_window=2, message_packets=170, path_mtu=1024)
"""The paper's: two messages of 170 packets of 1 KiB."""


@dataclass(frozen=True)
class Way:
    """One way to all-reduce: an engine's algorithm, and what it needs of the network.

    `inside`: neighbours may be in one machine; `by_machine`: workers of one work together; `spliced`: the switch adds.
    `scheme` is its name in the flow simulator, if it has one.
    """

    title: str
    algorithm: Algorithm
    inside: bool = False
    by_machine: bool = False
    spliced: bool = False
    scheme: str = ""


WAYS: dict[str, Way] = {
    "ring": Way("flat ring", Algorithm.RING, inside=True, scheme="ring"),
    "leaders": Way("leaders' ring (Tencent)", Algorithm.LEADERS, inside=True, by_machine=True, scheme="leaders"),
    "netreduce": Way("NetReduce", Algorithm.NETREDUCE, spliced=True, scheme="netreduce"),
    "parallel": Way(
        "Parallel NetReduce", Algorithm.NETREDUCE, inside=True, by_machine=True, spliced=True, scheme="parallel"
    ),
    "plain": Way("plain RoCE, not added", Algorithm.NETREDUCE),
}


@dataclass(frozen=True)
class Middlebox:
    """The switch that adds stands beside a switch that only forwards, with a cable to it for each machine."""

    delay_ps: int
    latency_ps: int = 0


@dataclass(frozen=True)
class Hardware:
    """`machines` of `gpus` workers each, on one switch. Raises ConfigurationError that names the entry.

    With several workers each has a link of `inside_bps` into its machine; `inside_delay_ps` is from one to another.
    `quantum_ps` is the simulator's: 0 handles every frame at its own instant.
    """

    machines: int
    gpus: int = 1
    port_bps: int = 100_000_000_000
    delay_ps: int = 1_000_000
    switch_latency_ps: int = 0
    inside_bps: int = 0
    inside_delay_ps: int = 0
    middlebox: Middlebox | None = None
    geometry: Geometry = GEOMETRY
    quantum_ps: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.machines < 1 or self.gpus < 1 or self.workers < 2:
            raise ConfigurationError(f"machines x gpus: {self.machines} x {self.gpus} are not at least two workers")
        if self.workers > RANKS_MAX:
            raise ConfigurationError(
                f"machines x gpus: {self.workers} workers, up to {RANKS_MAX} are possible here; "
                "`netreduce sim sweep` goes on from there"
            )
        if self.port_bps <= 0:
            raise ConfigurationError(f"port: {self.port_bps} bit/s, more than 0 is needed")
        if self.gpus > 1 and self.inside_bps <= 0:
            raise ConfigurationError(f"inside: {self.gpus} workers a machine need a bandwidth of their links")
        named = {
            "delay": self.delay_ps,
            "switch-latency": self.switch_latency_ps,
            "inside-delay": self.inside_delay_ps,
            "quantum": self.quantum_ps,
        }
        if self.middlebox is not None:
            named |= {"middlebox.delay": self.middlebox.delay_ps, "middlebox.latency": self.middlebox.latency_ps}
        for name, value in named.items():
            if value < 0:
                raise ConfigurationError(f"{name}: is negative")

    @property
    def workers(self) -> int:
        """On all machines together."""
        return self.machines * self.gpus

    @property
    def between_ps(self) -> int:
        """From a worker to one of another machine, through the switch without a detour: delays only."""
        return 2 * self.delay_ps + self.switch_latency_ps + (self.inside_delay_ps if self.gpus > 1 else 0)

    @property
    def detour_ps(self) -> int:
        """What the way through the middlebox adds to that."""
        if self.middlebox is None:
            return 0
        return self.switch_latency_ps + 2 * self.middlebox.delay_ps + self.middlebox.latency_ps


@dataclass(frozen=True)
class Case:
    """One all-reduce of `size_bytes` (float32) by the way named `way`. Raises ConfigurationError."""

    hardware: Hardware
    way: str
    size_bytes: int

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ConfigurationError(f"algorithm {self.way!r}: there are {', '.join(WAYS)}")
        if self.hardware.gpus > 1 and not WAYS[self.way].inside:
            raise ConfigurationError(
                f"algorithm {self.way!r}: its frames between workers of one machine would never pass the switch that "
                "adds; with several workers a machine use 'parallel'"
            )
        if self.size_bytes <= 0 or self.size_bytes % 4:
            raise ConfigurationError(f"size: {self.size_bytes} bytes are not one or more float32")
        held = self.hardware.workers * self.size_bytes
        if held > MEMORY_BYTES_MAX:
            raise ConfigurationError(
                f"size: {self.hardware.workers} workers with {self.size_bytes} bytes hold {held / 1e9:.1f} GB, "
                f"up to {MEMORY_BYTES_MAX / 1e9:.0f} GB are possible: the arrays are real"
            )
