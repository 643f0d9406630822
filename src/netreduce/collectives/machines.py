"""Which ranks share a machine: what the schedules for machines with several workers each need to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machines:
    """`members[m]` are the ranks of machine m, in rank order; machines are numbered by their lowest rank."""

    members: tuple[tuple[int, ...], ...]

    @classmethod
    def named(cls, names: Sequence[str]) -> Machines:
        """From the name of each rank's machine, in rank order."""
        members: dict[str, list[int]] = {}
        for rank, name in enumerate(names):
            members.setdefault(name, []).append(rank)
        return cls(tuple(map(tuple, members.values())))

    @classmethod
    def regular(cls, world_size: int, size: int) -> Machines:
        """Machines of `size` workers each, with ranks numbered machine by machine."""
        return cls(tuple(tuple(range(first, first + size)) for first in range(0, world_size, size)))

    @property
    def count(self) -> int:
        """How many machines there are."""
        return len(self.members)

    @property
    def size(self) -> int:
        """Workers of each machine; 0 if machines differ."""
        sizes = {len(ranks) for ranks in self.members}
        return sizes.pop() if len(sizes) == 1 else 0

    @property
    def are_several_with_several(self) -> bool:
        """Whether there are several machines, with several workers each, and equally many."""
        return self.count > 1 and self.size > 1

    @property
    def order(self) -> tuple[int, ...]:
        """All ranks, machine by machine. A rank's place in it is what the schedules call its rank."""
        return tuple(rank for ranks in self.members for rank in ranks)

    def mates(self, rank: int) -> tuple[int, ...]:
        """The ranks of `rank`'s machine, itself among them."""
        return next(ranks for ranks in self.members if rank in ranks)

    def across(self, rank: int) -> tuple[int, ...]:
        """The ring of `rank`: the workers of its number on all machines, in the order of the machines."""
        worker = self.mates(rank).index(rank)
        return tuple(ranks[worker] for ranks in self.members)

    def describe(self) -> str:
        """Such as ``2 machines of 4 workers``."""
        if self.size:
            machines = "one machine" if self.count == 1 else f"{self.count} machines"
            return f"{machines} of {self.size} worker{'s' if self.size > 1 else ''}"
        sizes = ", ".join(str(len(ranks)) for ranks in self.members)
        return f"{self.count} machines of unequal size ({sizes} workers)"
