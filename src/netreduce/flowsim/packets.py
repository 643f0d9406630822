"""Header tax: how many bytes a link carries for each byte of payload, for each transport that is compared.

Ethernet frames count what the wire is busy with: preamble, start delimiter and inter-frame gap (20 bytes) and FCS (4).
"""

from __future__ import annotations

from dataclasses import dataclass

ETHERNET = 14 + 4 + 20
IP_UDP = 20 + 8
BTH_ICRC = 12 + 4


@dataclass(frozen=True)
class Packets:
    """Packets of `payload_bytes` with `header_bytes` each, and `message_bytes` of headers per message where there are
    any.
    """

    payload_bytes: int
    header_bytes: int

    @property
    def frame_bytes(self) -> int:
        """A full packet on the wire."""
        return self.payload_bytes + self.header_bytes

    def tax(self) -> float:
        """Wire bytes per payload byte."""
        return (self.payload_bytes + self.header_bytes) / self.payload_bytes


UNTAXED = Packets(1, 0)
"""Links that carry nothing but payload, as closed forms assume."""


def roce(payload_bytes: int = 1024) -> Packets:
    """RoCEv2 over IPv4: 82 bytes a packet, so 92.6 % of the line at 1 KiB (the paper's packet size)."""
    return Packets(payload_bytes, ETHERNET + IP_UDP + BTH_ICRC)


SWITCHML = Packets(1024, ETHERNET + IP_UDP + 8 + 2)
"""SwitchML (NSDI 2021, p4app-switchML): 256 integers behind a header of 8 bytes and two exponents; 93.1 %."""

ATP = Packets(248, ETHERNET + 20 + 26)
"""ATP (NSDI 2021, in-ATP/ATP): 62 integers behind IP and a header of 26 bytes; 74.7 %."""

INFINIBAND = Packets(4096, 8 + 12 + 4 + 2)
"""LRH, BTH, ICRC and VCRC around 4 KiB, for trees in an InfiniBand fabric (SHARP)."""
