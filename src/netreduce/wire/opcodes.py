"""The BTH opcodes, and the one table of the headers and roles each has (IBA vol. 1, table 38).

The upper three bits of an opcode name the transport service, the lower five the operation. Names without a prefix are
of the Reliable Connection service; the Unreliable Connection (UC) has the same operations 0x20 higher.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np


class Opcode(IntEnum):
    """Opcodes of the services that this project names, and of the congestion notification packet."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_WITH_IMMEDIATE = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_WITH_IMMEDIATE = 0x05
    RDMA_WRITE_FIRST = 0x06
    RDMA_WRITE_MIDDLE = 0x07
    RDMA_WRITE_LAST = 0x08
    RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
    RDMA_WRITE_ONLY = 0x0A
    RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
    RDMA_READ_REQUEST = 0x0C
    RDMA_READ_RESPONSE_FIRST = 0x0D
    RDMA_READ_RESPONSE_MIDDLE = 0x0E
    RDMA_READ_RESPONSE_LAST = 0x0F
    RDMA_READ_RESPONSE_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    ATOMIC_ACKNOWLEDGE = 0x12
    COMPARE_SWAP = 0x13
    FETCH_ADD = 0x14
    SEND_LAST_WITH_INVALIDATE = 0x16
    SEND_ONLY_WITH_INVALIDATE = 0x17
    UC_SEND_FIRST = 0x20
    UC_SEND_MIDDLE = 0x21
    UC_SEND_LAST = 0x22
    UC_SEND_LAST_WITH_IMMEDIATE = 0x23
    UC_SEND_ONLY = 0x24
    UC_SEND_ONLY_WITH_IMMEDIATE = 0x25
    UC_RDMA_WRITE_FIRST = 0x26
    UC_RDMA_WRITE_MIDDLE = 0x27
    UC_RDMA_WRITE_LAST = 0x28
    UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x29
    UC_RDMA_WRITE_ONLY = 0x2A
    UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x2B
    UD_SEND_ONLY = 0x64
    UD_SEND_ONLY_WITH_IMMEDIATE = 0x65
    CNP = 0x81


class Role(IntFlag):
    """What a packet of an opcode is and carries.

    SEND, WRITE, READ, ATOMIC and ACK belong to the Reliable Connection alone. A packet of another service has UC or UD
    instead, so code that asks for a SEND never takes an unreliable packet for a reliable one.
    """

    SEND = 1 << 0
    WRITE = 1 << 1
    READ = 1 << 2
    ATOMIC = 1 << 3
    ACK = 1 << 4  # an answer: acknowledge, read response, atomic acknowledge
    CNP = 1 << 5
    START = 1 << 6  # FIRST or ONLY
    END = 1 << 7  # LAST or ONLY
    RETH = 1 << 8
    AETH = 1 << 9
    IMMEDIATE = 1 << 10
    INVALIDATE = 1 << 11
    PAYLOAD = 1 << 12
    ATOMIC_ETH = 1 << 13
    KNOWN = 1 << 14
    UC = 1 << 15
    UD = 1 << 16
    DETH = 1 << 17


BTH_BYTES = 12
RETH_BYTES = 16
AETH_BYTES = 4
IMMEDIATE_BYTES = 4
DETH_BYTES = 8
ICRC_BYTES = 4
CNP_RESERVED_BYTES = 16
_EXTENSION_BYTES = {
    Role.RETH: RETH_BYTES,
    Role.AETH: AETH_BYTES,
    Role.IMMEDIATE: IMMEDIATE_BYTES,
    Role.INVALIDATE: 4,
    Role.ATOMIC_ETH: 28,
    Role.CNP: CNP_RESERVED_BYTES,
    Role.DETH: DETH_BYTES,
}

_S, _W, _R, _A = Role.SEND, Role.WRITE, Role.READ, Role.ATOMIC
_START, _END, _DATA, _IMM = Role.START, Role.END, Role.PAYLOAD, Role.IMMEDIATE

_ROLES: dict[Opcode, Role] = {
    Opcode.SEND_FIRST: _S | _START | _DATA,
    Opcode.SEND_MIDDLE: _S | _DATA,
    Opcode.SEND_LAST: _S | _END | _DATA,
    Opcode.SEND_LAST_WITH_IMMEDIATE: _S | _END | _IMM | _DATA,
    Opcode.SEND_ONLY: _S | _START | _END | _DATA,
    Opcode.SEND_ONLY_WITH_IMMEDIATE: _S | _START | _END | _IMM | _DATA,
    Opcode.SEND_LAST_WITH_INVALIDATE: _S | _END | Role.INVALIDATE | _DATA,
    Opcode.SEND_ONLY_WITH_INVALIDATE: _S | _START | _END | Role.INVALIDATE | _DATA,
    Opcode.RDMA_WRITE_FIRST: _W | _START | Role.RETH | _DATA,
    Opcode.RDMA_WRITE_MIDDLE: _W | _DATA,
    Opcode.RDMA_WRITE_LAST: _W | _END | _DATA,
    Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE: _W | _END | _IMM | _DATA,
    Opcode.RDMA_WRITE_ONLY: _W | _START | _END | Role.RETH | _DATA,
    Opcode.RDMA_WRITE_ONLY_WITH_IMMEDIATE: _W | _START | _END | Role.RETH | _IMM | _DATA,
    Opcode.RDMA_READ_REQUEST: _R | _START | _END | Role.RETH,
    Opcode.RDMA_READ_RESPONSE_FIRST: Role.ACK | _START | Role.AETH | _DATA,
    Opcode.RDMA_READ_RESPONSE_MIDDLE: Role.ACK | _DATA,
    Opcode.RDMA_READ_RESPONSE_LAST: Role.ACK | _END | Role.AETH | _DATA,
    Opcode.RDMA_READ_RESPONSE_ONLY: Role.ACK | _START | _END | Role.AETH | _DATA,
    Opcode.ACKNOWLEDGE: Role.ACK | _START | _END | Role.AETH,
    Opcode.ATOMIC_ACKNOWLEDGE: Role.ACK | Role.AETH | _A,
    Opcode.COMPARE_SWAP: _A | _START | _END | Role.ATOMIC_ETH,
    Opcode.FETCH_ADD: _A | _START | _END | Role.ATOMIC_ETH,
    Opcode.UD_SEND_ONLY: Role.UD | _START | _END | Role.DETH | _DATA,
    Opcode.UD_SEND_ONLY_WITH_IMMEDIATE: Role.UD | _START | _END | Role.DETH | _IMM | _DATA,
    Opcode.CNP: Role.CNP,
}
_UC_BASE = Opcode.UC_SEND_FIRST - Opcode.SEND_FIRST
_ROLES |= {
    Opcode(opcode + _UC_BASE): roles & ~(_S | _W) | Role.UC
    for opcode, roles in _ROLES.items()
    if opcode <= Opcode.RDMA_WRITE_ONLY_WITH_IMMEDIATE
}

OPCODE_ROLES: np.ndarray = np.zeros(256, np.int64)
"""`Role` bits by opcode; 0 for an opcode that this project does not know. int64[256]."""
OPCODE_HEADER_BYTES: np.ndarray = np.zeros(256, np.int64)
"""BTH and extension headers by opcode, in bytes. int64[256]."""

for _opcode, _roles in _ROLES.items():
    OPCODE_ROLES[_opcode] = _roles | Role.KNOWN
    OPCODE_HEADER_BYTES[_opcode] = BTH_BYTES + sum(size for role, size in _EXTENSION_BYTES.items() if role & _roles)
OPCODE_HEADER_BYTES[Opcode.ATOMIC_ACKNOWLEDGE] += 8  # AtomicAckETH: the original value


_SERVICE_NAMES = {0x00: "RC ", 0x20: "UC ", 0x60: "UD ", 0x80: ""}


def opcode_name(opcode: int) -> str:
    """The opcode as engineers say it: service and operation, such as ``RC SEND_FIRST``; its number if unknown."""
    if not OPCODE_ROLES[opcode]:
        return f"opcode 0x{opcode:02x}"
    return _SERVICE_NAMES[opcode & 0xE0] + Opcode(opcode).name.removeprefix("UC_").removeprefix("UD_")
