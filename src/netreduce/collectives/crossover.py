"""Which all-reduce between hosts is fastest at a given size: a model of three costs, and where its lines cross.

The terms are those of Thakur, Rabenseifner and Gropp (2005): a cost per step, per byte on a link, and per byte added.
Hosts hang on one switch, so each has its link to itself. Powers of two go by halving and doubling, and long buffers
round the ring, whose channels hide half of the additions; other world sizes cost halving a step and a whole buffer
more, so a tree takes their short buffers. Two hosts are a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from netreduce.units import KIB

TREE_SLICE_BYTES = 256 * KIB
"""Slices of each tree's half that follow each other: so long that the handshake of one is small beside it."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """What steps and bytes cost between two hosts, in picoseconds. Only their ratios decide.

    The defaults are round numbers for this package's own NIC on local cables, where a step (clear to send, write,
    completions) passes three processes, and a core moves about 1 GB/s from array to array. `netreduce bench` with
    ``--algorithm`` shows where a machine differs.
    """

    step_ps: int = 100_000_000
    link_byte_ps: int = 1_000
    added_byte_ps: int = 250

    def ring_ps(self, world_size: int, length_bytes: int) -> float:
        """2(N-1) steps with a chunk each; half of the additions are hidden behind the other channel's transfers."""
        share = (world_size - 1) / world_size * length_bytes
        return 2 * (world_size - 1) * self.step_ps + 2 * share * self.link_byte_ps + share / 2 * self.added_byte_ps

    def halving_ps(self, world_size: int, length_bytes: int) -> float:
        """2 log2(N) steps; ranks beyond the power of two bring and fetch whole buffers."""
        core = 1 << (world_size.bit_length() - 1)
        steps, moved, added = 2 * (core.bit_length() - 1), 2 * (core - 1) / core, (core - 1) / core
        if core != world_size:
            steps, moved, added = steps + 2, moved + 2, added + 1
        return steps * self.step_ps + length_bytes * (moved * self.link_byte_ps + added * self.added_byte_ps)

    def tree_ps(self, world_size: int, length_bytes: int) -> float:
        """Up and down two trees side by side: in each tick an inner rank takes a slice of a half from two children."""
        height = world_size.bit_length() - 1
        slices = tree_slices(length_bytes)
        ticks = slices + height - 1
        tick_ps = self.step_ps + length_bytes / slices * self.link_byte_ps
        return 2 * ticks * tick_ps + ticks / slices * length_bytes * self.added_byte_ps

    def fastest(self, world_size: int, length_bytes: int) -> str:
        """``halving``, ``tree`` or ``ring``, whichever is modelled to end first."""
        ways: dict[str, Callable[[int, int], float]] = {
            "halving": self.halving_ps,
            "tree": self.tree_ps,
            "ring": self.ring_ps,
        }
        return min(ways, key=lambda name: ways[name](world_size, length_bytes))


def tree_slices(length_bytes: int) -> int:
    """How many slices each tree's half of `length_bytes` is cut into."""
    return max(1, -(-length_bytes // (2 * TREE_SLICE_BYTES)))
