"""Giving privileges up: once the ports are open, a switch needs none."""

from __future__ import annotations

import ctypes
import os
import pwd
import struct

from netreduce.errors import ConfigurationError

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def become(user: str) -> None:
    """Become `user` (empty: stay who one is), for good, without capabilities, and never gain any again.

    `ConfigurationError` when that fails: a switch that keeps its privileges must not run on as if it had none.
    """
    if user:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    header, none = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    if _libc.capset(header, none) or _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise ConfigurationError(f"privileges cannot be given up: {os.strerror(ctypes.get_errno())}")
