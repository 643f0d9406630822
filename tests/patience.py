"""Waiting for what happens a moment later in another thread or process: an end, a descriptor that closes, a news.

A test that looks at once fails by chance on a loaded machine. These wait for as long as no sane machine needs, and
return as soon as it is so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 30.0
BOUND_S = 5.0
"""Within this time survivors must hear of a death on an idle machine; they do within milliseconds."""


def bound_s() -> float:
    """`BOUND_S` on this machine at this moment: with more work than cores everything takes so many times longer."""
    return BOUND_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def eventually(holds: Callable[[], Any], timeout_s: float = PATIENCE_S) -> bool:
    """Whether ``holds()`` becomes true within `timeout_s`; it is asked at least once."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    """Whether process `pid` runs; one that is dead and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def descriptors() -> dict[str, str]:
    """This process's open descriptors, each with what it is open on."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
    return found
