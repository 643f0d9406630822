"""The few system calls that compiled code makes: a process that was woken need not pass through the interpreter first.

Each is the C library's function of that name, called by its symbol from compiled code and by ctypes from plain Python.
Addresses and numbers are int64. Nothing waits but `wait`.
"""

from __future__ import annotations

import ctypes
import platform
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

from netreduce.compiled import JIT_DISABLED, compiled, memory_at
from netreduce.units import PS_PER_MS, PS_PER_NS, PS_PER_S

EVENT_WORDS = 3 if platform.machine() == "x86_64" else 4
"""int32 words of a struct epoll_event, which is packed on x86-64 alone."""
_DESCRIPTOR_AT = EVENT_WORDS - 2
_CLOCK_MONOTONIC = 1
_EPOLL_CTL_MOD = 3
_BELL_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_TRUNC)
_SEND_FLAGS = int(socket.MSG_DONTWAIT)
_TIMEOUT_MS_MAX = 1000


def _foreign(name: str, count: int) -> Callable[..., int]:
    """The C library's function `name` of `count` numbers; it returns an int."""
    if JIT_DISABLED:
        function: Any = getattr(_libc, name)
        function.argtypes, function.restype = [ctypes.c_int64] * count, ctypes.c_int32
        return function
    return types.ExternalFunction(name, types.int32(*[types.int64] * count))


def _errno() -> int:
    """Why the latest call has failed."""
    return ctypes.get_errno()


if JIT_DISABLED:
    _libc = ctypes.CDLL(None, use_errno=True)
else:
    from numba import types
    from numba.extending import overload

    _errno_location: Any = types.ExternalFunction("__errno_location", types.uintp())

    @overload(_errno)
    def _errno_compiled() -> Any:
        return lambda: np.int64(memory_at(_errno_location(), 4).view(np.int32)[0])


_clock_gettime = _foreign("clock_gettime", 2)
_epoll_ctl = _foreign("epoll_ctl", 4)
_epoll_wait = _foreign("epoll_wait", 4)
_recv = _foreign("recv", 4)
_send = _foreign("send", 4)
_recvmmsg = _foreign("recvmmsg", 5)
_sendmmsg = _foreign("sendmmsg", 4)


@compiled
def now_ps(scratch: np.ndarray, epoch_ns: int) -> int:
    """As `Clock.now_ps` of a clock with this epoch. `scratch` is int64[2]."""
    _clock_gettime(_CLOCK_MONOTONIC, scratch.ctypes.data)
    return (scratch[0] * (PS_PER_S // PS_PER_NS) + scratch[1] - epoch_ns) * PS_PER_NS


@compiled
def ring_bell(descriptor: int, scratch: np.ndarray) -> bool:
    """Send a byte to a socket; whether that was possible. What is in the byte does not matter."""
    return _send(descriptor, scratch.ctypes.data, 1, _BELL_FLAGS) == 1


@compiled
def take_bell(descriptor: int, scratch: np.ndarray) -> bool:
    """Take a byte from a socket; whether there was one."""
    return _recv(descriptor, scratch.ctypes.data, 1, _BELL_FLAGS) == 1


@compiled
def receive_messages(descriptor: int, messages: np.ndarray, count: int) -> int:
    """Receive up to `count` messages, whose real lengths are told even if they did not fit.

    `messages` (int64[n, 8]) are struct mmsghdr of a 64-bit Linux; returns how many, or an errno below zero.
    """
    found = _recvmmsg(descriptor, messages.ctypes.data, count, _RECEIVE_FLAGS, 0)
    return found if found >= 0 else -_errno()


@compiled
def send_messages(descriptor: int, messages: np.ndarray, count: int) -> int:
    """Send up to `count` messages; see `receive_messages`."""
    sent = _sendmmsg(descriptor, messages.ctypes.data, count, _SEND_FLAGS)
    return sent if sent >= 0 else -_errno()


@compiled
def wait(epoll: int, events: np.ndarray, wait_ps: int) -> int:
    """Sleep until a descriptor is ready, for `wait_ps` at most; how many are, or -1 after a signal.

    `events` is int32[n, EVENT_WORDS]: row by row what is ready, see `ready_descriptor`.
    """
    timeout_ms = min(_TIMEOUT_MS_MAX, (max(0, wait_ps) + PS_PER_MS - 1) // PS_PER_MS)
    return _epoll_wait(epoll, events.ctypes.data, events.shape[0], timeout_ms)


@compiled
def ready_mask(events: np.ndarray, number: int) -> int:
    """What is ready, as EPOLLIN."""
    return events[number, 0]


@compiled
def ready_descriptor(events: np.ndarray, number: int) -> int:
    """Where it is."""
    return events[number, _DESCRIPTOR_AT]


@compiled
def watch_for(epoll: int, descriptor: int, mask: int, events: np.ndarray) -> None:
    """Change what `epoll` watches a descriptor for. Uses the first row of `events`."""
    events[0, 0] = mask
    events[0, _DESCRIPTOR_AT] = descriptor
    _epoll_ctl(epoll, _EPOLL_CTL_MOD, descriptor, events.ctypes.data)


def make_events(count: int) -> np.ndarray:
    """Room for `count` events."""
    return np.zeros((count, EVENT_WORDS), np.int32)
