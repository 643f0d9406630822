"""Who keeps whom waiting in calls between hosts, and who is in another call than the others.

The switch sees which ranks have sent a message of the ring, but not what hosts owe each other. So a rank that has
waited for a while says in which call and for whom; what follows from the reports of all is found here. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netreduce.wire.control import BETWEEN_PEERS, Mismatch, Stuck, Waiting

SETTLE_S = 0.3
"""How long a report waits for those of others that began to wait at the same time."""
FRESH_S = 5.0
"""A rank that waits says so every two seconds: an older report is of a wait that is over."""


@dataclass
class _Report:
    stuck: Stuck
    at_s: float
    is_told: bool = False


class Waits:
    """The reports of one ring's ranks."""

    def __init__(self, ring_id: int) -> None:
        self._ring_id = ring_id
        self._reports: dict[int, _Report] = {}
        self._has_disagreed = False

    def report(self, rank: int, stuck: Stuck, now_s: float) -> None:
        """Rank `rank` waits."""
        self._reports[rank] = _Report(stuck, now_s)

    def disagreement(self) -> Mismatch | None:
        """Two ranks whose calls of the same number are different ones; found once."""
        by_sequence: dict[int, int] = {}
        for rank, report in sorted(self._reports.items()):
            sequence, call = report.stuck.sequence, report.stuck.call
            first = by_sequence.setdefault(sequence, rank)
            other = self._reports[first].stuck.call
            if sequence >= 0 and call != other and not self._has_disagreed:
                self._has_disagreed = True
                return Mismatch(self._ring_id, BETWEEN_PEERS, first, f"{other} as #{sequence}", rank, call)
        return None

    def notices(self, now_s: float) -> Iterator[tuple[int, Waiting]]:
        """What ranks must be told, each with its rank: who does not wait itself, but is waited for.

        When all who are waited for wait as well, each rank is told of those that itself waits for.
        """
        fresh = {rank: report for rank, report in self._reports.items() if now_s - report.at_s < FRESH_S}
        wanted = {peer for report in fresh.values() for peer in report.stuck.waits_for}
        for rank, report in fresh.items():
            stuck = report.stuck
            if stuck.waits_for and not report.is_told and now_s - report.at_s >= SETTLE_S:
                report.is_told = True
                missing = tuple(sorted(wanted - fresh.keys())) or stuck.waits_for
                yield rank, Waiting(self._ring_id, BETWEEN_PEERS, missing, stuck.waiting_s)
