"""AETH syndromes and the RNR timer's table (IBA vol. 1, tables 43 to 45)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.nic.enums import WcStatus
from netreduce.units import PS_PER_US


class Syndrome(IntEnum):
    """The upper three bits of a syndrome."""

    ACK = 0
    RNR_NAK = 1
    NAK = 3


ACK_UNLIMITED = 0x1F
"""An ACK that grants no credits: senders find out by RNR NAK."""
RNR_NAK_BASE = 0x20
NAK_SEQUENCE = 0x60
NAK_INVALID_REQUEST = 0x61
NAK_REMOTE_ACCESS = 0x62
NAK_REMOTE_OPERATION = 0x63

NAK_STATUSES = np.zeros(256, np.int64)
"""Status with which a fatal NAK completes the work request, by syndrome; 0 for all others. int64[256]."""
NAK_STATUSES[NAK_INVALID_REQUEST] = WcStatus.IBV_WC_REM_INV_REQ_ERR
NAK_STATUSES[NAK_REMOTE_ACCESS] = WcStatus.IBV_WC_REM_ACCESS_ERR
NAK_STATUSES[NAK_REMOTE_OPERATION] = WcStatus.IBV_WC_REM_OP_ERR

_RNR_TIMERS_10_US = (
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
)  # fmt: skip
RNR_TIMERS_PS = np.array(_RNR_TIMERS_10_US, np.int64) * 10 * PS_PER_US
"""Least wait that an RNR NAK asks for, by the lower five bits of its syndrome. int64[32]."""
ACK_TIMEOUT_UNIT_PS = 4_096_000
"""The local ACK timeout is 4.096 us times two to the power of the attribute (IBA vol. 1, section 9.9.2.1.1)."""
