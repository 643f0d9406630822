"""What `netreduce doctor` finds, one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Check:
    """One finding. `advice` says what to do about a note or about something missing; empty when all is well."""

    name: str
    status: Status
    found: str
    advice: str = ""
