"""Named directed links with a capacity and a latency, and how a user changes them: slower, slower to answer, or
failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.flowsim.flows import Floats


@dataclass(frozen=True)
class Links:
    """names[i], capacity[i] in bytes a second (float64) and latency_s[i] (float64) of link i. A name reads
    "from->to".
    """

    names: Sequence[str]
    capacity: Floats
    latency_s: Floats

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Change:
    """What a user says of some links: those whose name matches `pattern` (shell wildcards) are changed.

    "leaf0->spine1" is one direction, "leaf0--spine1" both. `factor` multiplies the capacity; 0 is a failed link, which
    routes avoid where the fabric has another way. `added_latency_s` delays.
    """

    pattern: str
    factor: float = 1.0
    added_latency_s: float = 0.0

    def matches(self, name: str) -> bool:
        if "--" not in self.pattern:
            return fnmatchcase(name, self.pattern)
        one, other = self.pattern.split("--", 1)
        return fnmatchcase(name, f"{one}->{other}") or fnmatchcase(name, f"{other}->{one}")


class LinkBuilder:
    """Collects groups of links; a group's first index comes back from `add`, the links follow each other."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._capacity: list[float] = []
        self._latency_s: list[float] = []

    def add(self, names: Iterable[str], capacity: float, latency_s: float) -> int:
        """`capacity` in bytes a second."""
        first = len(self._names)
        self._names.extend(names)
        count = len(self._names) - first
        self._capacity.extend([capacity] * count)
        self._latency_s.extend([latency_s] * count)
        return first

    def build(self) -> Links:
        return Links(self._names, np.array(self._capacity, np.float64), np.array(self._latency_s, np.float64))


def changed(links: Links, changes: Sequence[Change]) -> Links:
    """`links` after `changes`, in order. Raises ConfigurationError for a pattern that no link matches."""
    capacity, latency_s = links.capacity.copy(), links.latency_s.copy()
    for change in changes:
        hits = [index for index, name in enumerate(links.names) if change.matches(name)]
        if not hits:
            raise ConfigurationError(
                f"no link matches {change.pattern!r}; there are {', '.join(map(repr, links.names[:3]))} and so on"
            )
        capacity[hits] *= change.factor
        latency_s[hits] += change.added_latency_s
    return Links(links.names, capacity, latency_s)
