"""Where hosts in network namespaces can be had (see benchmarks/namespaces.py), and what tests say where not."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def require_root() -> None:
    """Skip where namespaces cannot be made; fail where ``CI=true``."""
    reason, probe = "", f"nrprobe{os.getpid()}"
    if os.geteuid() != 0:
        reason = "network namespaces need root"
    elif shutil.which("ip") is None:
        reason = "ip is not installed: apt-get install iproute2"
    elif subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        reason = "network namespaces cannot be made here"
    else:
        subprocess.run(["ip", "netns", "del", probe], check=True)
    if reason and os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
