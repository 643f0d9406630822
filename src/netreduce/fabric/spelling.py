"""Faults in words, for command lines: ``worker 1: drop psn=7``, ``all down: duplicate probability=0.01 copies=2``.

A text names where (a worker, a port, all; ``up`` is towards the switch, ``down`` back), what happens (the methods of
`rules.Installer`), and when (the conditions of `rules.Rule`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from netreduce.errors import ConfigurationError
from netreduce.fabric.rules import Installer, Rule
from netreduce.units import PS_PER_MS, PS_PER_NS, PS_PER_S, PS_PER_US
from netreduce.wire.opcodes import Opcode

EXAMPLE = "'worker 1: drop psn=7'"
NUMBERS_MAX = 10_000
"""Most numbers that one condition may list, such as ``psn=0-9999``."""

_WHERE = re.compile(r"(?:(all)|worker (\d+)|port (\S+))(?: (up|down))?: *(\S.*)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ps|ns|us|ms|s)")
_UNITS_PS = {"ps": 1, "ns": PS_PER_NS, "us": PS_PER_US, "ms": PS_PER_MS, "s": PS_PER_S}


def _duration_ps(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("want a time such as 20us, 5ms, 2s")
    return round(float(match[1]) * _UNITS_PS[match[2]])


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("want a number")
    return int(text)


def _numbers(text: str) -> int | list[int]:
    """Such as 7, 7,9 or 7-9."""
    if text.isdecimal():
        return int(text)
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        span = range(_count(first), (_count(last) if dash else _count(first)) + 1)
        if len(numbers) + len(span) > NUMBERS_MAX:
            raise ValueError(f"at most {NUMBERS_MAX} numbers are possible")
        numbers.extend(span)
    return numbers


def _opcodes(text: str) -> list[int]:
    """Names of opcodes or beginnings of them, such as ACK or SEND,RDMA_WRITE_LAST."""
    found = [code.value for code in Opcode for part in text.upper().split(",") if part and code.name.startswith(part)]
    if not found:
        raise ValueError(f"want names such as {Opcode.SEND_MIDDLE.name} or {Opcode.ACKNOWLEDGE.name}")
    return found


def _probability(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("want a number from 0 to 1") from None


Parser = Callable[[str], Any]

_CONDITIONS: dict[str, tuple[str, Parser]] = {
    "psn": ("psn", _numbers),
    "opcode": ("opcode", _opcodes),
    "qpn": ("qpn", _numbers),
    "nth": ("nth", _count),
    "every": ("every", _count),
    "probability": ("probability", _probability),
    "times": ("times", _count),
    "from": ("from_ps", _duration_ps),
    "for": ("for_ps", _duration_ps),
}
_MEASURES: dict[str, dict[str, tuple[str, Parser]]] = {
    "drop": {},
    "partition": {},
    "duplicate": {"copies": ("copies", _count), "after": ("after_ps", _duration_ps)},
    "delay": {"by": ("delay_ps", _duration_ps)},
    "reorder": {"by": ("by", _count)},
    "corrupt": {"bit": ("bit", _count)},
    "truncate": {"to": ("length", _count)},
    "stall": {"for": ("duration_ps", _duration_ps)},
}
_METHODS = {"stall": "stall_for"}
"""Where the method has another name than the effect has here."""
_NEEDED = {"delay": "by", "stall": "for"}


@dataclass(frozen=True)
class Spelled:
    """A fault as it was spelled: on the link of `worker`, of `port`, or on all if both are None; `direction` or both.

    `method` of an `Installer` installs it with `arguments`.
    """

    text: str
    worker: int | None
    port: str | None
    direction: str | None
    method: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def install(self, installer: Installer) -> Rule:
        """Put the rule on a line or link, or what else takes rules."""
        rule: Rule = getattr(installer, self.method)(**self.arguments)
        return rule


def parse_fault(text: str) -> Spelled:
    """The fault that `text` spells; `ConfigurationError` names what is wrong with it."""
    match = _WHERE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"fault {text!r}: want WHERE: WHAT, such as {EXAMPLE}; WHERE is worker N, port NAME or all, then up or down"
        )
    _, worker, port, direction, rest = match.groups()
    what, *words = rest.split()
    if what not in _MEASURES:
        raise ConfigurationError(f"fault {text!r}: {what!r} is not known; there are {', '.join(_MEASURES)}")
    allowed = _CONDITIONS | _MEASURES[what]
    arguments: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in allowed:
            raise ConfigurationError(f"fault {text!r}: {what} takes {', '.join(allowed)}, not {name!r}")
        parameter, parse = allowed[name]
        try:
            arguments[parameter] = parse(value)
        except ValueError as error:
            raise ConfigurationError(f"fault {text!r}: {word}: {error}") from None
    needed = _NEEDED.get(what)
    if needed and allowed[needed][0] not in arguments:
        raise ConfigurationError(f"fault {text!r}: {what} needs {needed}=TIME, such as {needed}=5ms")
    spelled = Spelled(
        text, None if worker is None else int(worker), port, direction, _METHODS.get(what, what), arguments
    )
    spelled.install(_Trial())  # wrong values are an error now, not when the worker comes
    return spelled


class _Trial(Installer):
    """Takes rules and forgets them."""

    def install(self, rule: Rule) -> Rule:
        """`rule`, installed nowhere."""
        return rule
