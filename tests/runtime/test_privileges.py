"""Privileges given up, and what is said where they are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.live

OPEN_WITHOUT = """
from netreduce.errors import ConfigurationError
from netreduce.runtime.interface import InterfaceCarrier
from netreduce.runtime.privileges import become
become("")
try:
    InterfaceCarrier("lo", lambda: 0)
except ConfigurationError as error:
    print(error)
"""


def test_an_interface_that_may_not_be_opened_is_one_line_with_what_to_type():
    result = subprocess.run([sys.executable, "-c", OPEN_WITHOUT], capture_output=True, text=True, timeout=60)
    assert result.stderr == ""
    (line,) = result.stdout.splitlines()
    assert "CAP_NET_RAW" in line
    assert "sudo setcap cap_net_raw,cap_net_admin+ep /" in line
