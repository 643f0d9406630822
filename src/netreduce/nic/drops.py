"""Dropping a frame: always with a reason, a counter and an event."""

from __future__ import annotations

from netreduce.compiled import compiled
from netreduce.nic.tables import NicTables, note
from netreduce.trace.events import Event


@compiled
def drop(tables: NicTables, reason: int, qpn: int, psn: int) -> None:
    """Count a dropped frame under its `DropReason`."""
    tables.drops[reason] += 1
    note(tables, Event.DROPPED.value, qpn, psn, -1, reason)
