"""Which frames of a capture to show: the questions that a network engineer asks of one."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from netreduce.errors import ConfigurationError
from netreduce.wire.aeth import describe_syndrome
from netreduce.wire.dissect import ROCE, FrameView
from netreduce.wire.opcodes import Opcode, opcode_name
from netreduce.wire.others import PROTOCOLS


def _normalised(text: str) -> str:
    return text.upper().replace(" ", "_").replace("-", "_")


def parse_number(text: str, name: str) -> int:
    """A number in decimal or, with 0x, in hexadecimal; `ConfigurationError` that names the option otherwise."""
    try:
        return int(text, 0)
    except ValueError:
        raise ConfigurationError(f"{name} {text!r}: a number is expected, such as 17 or 0x11") from None


def parse_range(text: str, name: str) -> range:
    """A number, or an inclusive range such as ``10-20``."""
    first, dash, last = text.partition("-")
    start = parse_number(first, name)
    numbers = range(start, (parse_number(last, name) if dash else start) + 1)
    if not numbers:
        raise ConfigurationError(f"{name} {text!r}: the range is empty; the smaller number comes first")
    return numbers


def parse_addresses(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """An address or a network such as ``10.78.0.0/16``."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigurationError(f"--ip {text!r}: an address or a network such as 10.78.0.0/16 is expected") from None


def parse_kind(text: str) -> str:
    """Part of a name of an opcode, a protocol or an acknowledgement (``send``, ``arp``, ``nak``), or ``0x04``."""
    kind = _normalised(text)
    if kind.startswith("0X"):
        return f"0X{parse_number(text, '--opcode'):02X}"
    known = [*map(opcode_name, Opcode), *map(describe_syndrome, range(256)), *PROTOCOLS, ROCE]
    if not any(kind in _normalised(name) for name in known):
        raise ConfigurationError(f"--opcode {text!r}: no such name; try send_first, write, ack, nak, cnp, arp or 0x04")
    return kind


@dataclass(frozen=True)
class FrameFilter:
    """All conditions that are set must hold; of several values for one condition, one is enough."""

    qpns: Sequence[range] = ()  # destination QPN
    psns: Sequence[range] = ()
    addresses: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = ()  # source or destination
    kinds: Sequence[str] = ()  # from `parse_kind`
    rings: Sequence[range] = ()
    ranks: Sequence[range] = ()
    messages: Sequence[range] = ()
    ports: Sequence[str] = ()  # the capture's interface names
    bad: bool = False  # malformed, or the ICRC is wrong
    retransmitted: bool = False
    roce: bool = False

    def admits(self, view: FrameView) -> bool:
        """Whether to show the frame."""
        numbers = (
            (self.qpns, view.destination_qpn),
            (self.psns, view.psn),
            (self.rings, view.ring_id),
            (self.ranks, view.rank),
            (self.messages, view.message_id),
        )
        if any(ranges and not any(value in wanted for wanted in ranges) for ranges, value in numbers):
            return False
        if (self.bad and not view.is_bad) or (self.retransmitted and not view.retransmitted):
            return False
        if (self.roce and view.protocol != ROCE) or (self.ports and view.port not in self.ports):
            return False
        return (not self.addresses or self._has_address(view)) and (not self.kinds or self._has_kind(view))

    def _has_address(self, view: FrameView) -> bool:
        texts = [text for text in (view.source_ip, view.destination_ip) if text]
        return any(ipaddress.ip_address(text) in network for text in texts for network in self.addresses)

    def _has_kind(self, view: FrameView) -> bool:
        text = _normalised(f"{view.protocol} {view.opcode_name} {view.acknowledgement}")
        return any(kind in text or kind == f"0X{view.opcode:02X}" for kind in self.kinds)
