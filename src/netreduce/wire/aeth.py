"""The AETH syndrome: what an acknowledgement says (IBA vol. 1, section 9.7.5.1, tables 44 to 46).

Bits 6 and 5 name the kind; the lower five are the credit count of an ACK, the timer of an RNR NAK, the code of a NAK.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.units import PS_PER_MS, PS_PER_US

AETH_KIND_MASK = 0x60
AETH_VALUE_MASK = 0x1F
CREDITS_UNLIMITED = 0x1F


class AckKind(IntEnum):
    """Bits 6 and 5 of a syndrome."""

    ACK = 0x00
    RNR_NAK = 0x20
    RESERVED = 0x40
    NAK = 0x60


class Syndrome(IntEnum):
    """Whole syndromes that need no parameter. An RNR NAK is ``AckKind.RNR_NAK | timer code``."""

    ACK = AckKind.ACK | CREDITS_UNLIMITED
    NAK_PSN_SEQUENCE_ERROR = 0x60
    NAK_INVALID_REQUEST = 0x61
    NAK_REMOTE_ACCESS_ERROR = 0x62
    NAK_REMOTE_OPERATIONAL_ERROR = 0x63
    NAK_INVALID_RD_REQUEST = 0x64


# Timer codes 1 to 31 in microseconds: after the first four, each pair of codes doubles. Code 0 is the longest wait.
_RNR_TIMER_US = [655_360, 10, 20, 30, 40] + [unit << shift for shift in range(1, 14) for unit in (30, 40)] + [491_520]
RNR_TIMER_PS: np.ndarray = np.array(_RNR_TIMER_US, np.int64) * PS_PER_US
"""How long a sender waits after an RNR NAK, by its 5-bit timer code, in picoseconds. int64[32]."""

_NAK_NAMES = {
    Syndrome.NAK_PSN_SEQUENCE_ERROR: "PSN sequence error",
    Syndrome.NAK_INVALID_REQUEST: "invalid request",
    Syndrome.NAK_REMOTE_ACCESS_ERROR: "remote access error",
    Syndrome.NAK_REMOTE_OPERATIONAL_ERROR: "remote operational error",
    Syndrome.NAK_INVALID_RD_REQUEST: "invalid RD request",
}


def describe_syndrome(syndrome: int) -> str:
    """The syndrome in words, such as ``ACK``, ``RNR NAK, wait 0.64 ms`` or ``NAK PSN sequence error``."""
    kind, value = syndrome & ~AETH_VALUE_MASK, syndrome & AETH_VALUE_MASK
    if kind == AckKind.ACK:
        return "ACK" if value == CREDITS_UNLIMITED else f"ACK, credit code {value}"
    if kind == AckKind.RNR_NAK:
        return f"RNR NAK, wait {RNR_TIMER_PS[value] / PS_PER_MS:g} ms"
    if syndrome in _NAK_NAMES:
        return f"NAK {_NAK_NAMES[syndrome]}"
    return f"reserved syndrome 0x{syndrome:02x}"
