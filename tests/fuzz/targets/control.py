"""Control messages of any bytes, from three workers, at the switch's control desk.

Input: lines; the first byte of each tells whose control connection it comes by, or that the worker is lost.
"""

from __future__ import annotations

import msgspec

from netreduce.runtime.control_channel import BadMessageError
from netreduce.runtime.control_desk import ControlDesk
from netreduce.switch import Switch, SwitchLimits
from netreduce.wire import control

WORKERS = 3
LINES_MAX = 64
ADDRESSES = [(f"10.78.0.{port + 2}", f"02:4e:52:00:00:{port + 2:02x}") for port in range(WORKERS)]
LIMITS = SwitchLimits(memory_bytes=1 << 22, egress_bytes=1 << 12, rings=4, connections=16, macs=16)


def check(data: bytes) -> None:
    """Raise AssertionError, or anything but a refusal, when a request harms the switch."""
    switch = Switch("switch", WORKERS, limits=LIMITS)
    for port, (ip, mac) in enumerate(ADDRESSES):
        switch.attach(port, mac, ip)
    desk = ControlDesk(switch)
    for number, line in enumerate(data.split(b"\n")[:LINES_MAX]):
        port, text = line[0] % WORKERS if line else 0, line[1:]
        for target, message in _outgoing(desk, port, text, number * 10**12):
            assert 0 <= target < WORKERS
            assert control.decode(control.encode(message)) == message
    for port in range(WORKERS):
        desk.lost(port, "the end")
    assert desk.statistics().rings == {}
    assert not switch.tables.rings.used.any()
    assert switch.tables.state[0].keys_used == 0


def _outgoing(desk: ControlDesk, port: int, text: bytes, now_ps: int) -> list[tuple[int, control.Message]]:
    """What goes out for one line: a request, or none if it was refused, and what the passing of time brings."""
    outgoing = []
    if text == b"lost":
        outgoing += desk.lost(port, "lost")
    else:
        try:
            message = control.decode(text)
            assert control.decode(control.encode(message)) == message
            outgoing += desk.answer(port, ADDRESSES[port], message, now_ps)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadMessageError):
            pass
    return outgoing + desk.tick(now_ps)
