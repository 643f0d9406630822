"""recvmmsg and sendmmsg (Linux) for compiled code, and for the same lines as plain Python.

Both take `messages` (int64[n, 8], struct mmsghdr of a 64-bit Linux), never wait, and return the number of messages, or
an errno below zero. Calling them from Python, once for some 100 KiB, costs as much as moving these.
"""

from __future__ import annotations

import ctypes
import socket
from typing import Any

import numpy as np

from netreduce.compiled import JIT_DISABLED, memory_at

_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_TRUNC)
_SEND_FLAGS = int(socket.MSG_DONTWAIT)
_libc = ctypes.CDLL(None, use_errno=True)


def receive_messages(descriptor: int, messages: np.ndarray, count: int) -> int:
    """Receive up to `count` messages, whose real lengths are told even if they did not fit."""
    found = _libc.recvmmsg(int(descriptor), ctypes.c_void_p(messages.ctypes.data), int(count), _RECEIVE_FLAGS, None)
    return int(found) if found >= 0 else -ctypes.get_errno()


def send_messages(descriptor: int, messages: np.ndarray, count: int) -> int:
    """Send up to `count` messages."""
    sent = _libc.sendmmsg(int(descriptor), ctypes.c_void_p(messages.ctypes.data), int(count), _SEND_FLAGS)
    return int(sent) if sent >= 0 else -ctypes.get_errno()


if not JIT_DISABLED:  # the bodies that Numba takes instead
    from numba import types
    from numba.extending import overload

    _int: Any = types.int32
    _word: Any = types.uintp
    _recvmmsg: Any = types.ExternalFunction("recvmmsg", _int(_int, _word, types.uint32, _int, _word))
    _sendmmsg: Any = types.ExternalFunction("sendmmsg", _int(_int, _word, types.uint32, _int))
    _errno_location: Any = types.ExternalFunction("__errno_location", _word())

    @overload(receive_messages)
    def _receive_compiled(descriptor: Any, messages: Any, count: Any) -> Any:
        def implementation(descriptor: Any, messages: Any, count: Any) -> Any:
            found = np.int64(_recvmmsg(descriptor, messages.ctypes.data, count, _RECEIVE_FLAGS, 0))
            return found if found >= 0 else -np.int64(memory_at(_errno_location(), 4).view(np.int32)[0])

        return implementation

    @overload(send_messages)
    def _send_compiled(descriptor: Any, messages: Any, count: Any) -> Any:
        def implementation(descriptor: Any, messages: Any, count: Any) -> Any:
            sent = np.int64(_sendmmsg(descriptor, messages.ctypes.data, count, _SEND_FLAGS))
            return sent if sent >= 0 else -np.int64(memory_at(_errno_location(), 4).view(np.int32)[0])

        return implementation
