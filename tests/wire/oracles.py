"""Programs of others that judge what we make: tshark and editcap. CI must have them; elsewhere they may be missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def require_program(name: str) -> str:
    """The program's path. Without it a test is skipped with a reason, but fails where ``CI=true``."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not installed: apt-get install tshark"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def tshark_fields(path: Path, *fields: str) -> list[list[str]]:
    """The named fields of each packet, as tshark prints them; of a field that occurs twice, the first."""
    command = [
        require_program("tshark"),
        "-n",
        "-r",
        str(path),
        "-T",
        "fields",
        "-E",
        "separator=|",
        "-E",
        "occurrence=f",
    ]
    for field in fields:
        command += ["-e", field]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return [line.split("|") for line in output.splitlines()]


def editcap(source: Path, target: Path, *arguments: str) -> None:
    """Rewrite a capture file, for instance with ``-F pcap`` or ``-s 96``."""
    command = [require_program("editcap"), *arguments, str(source), str(target)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
