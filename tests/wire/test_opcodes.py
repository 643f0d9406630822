"""The opcode table against the specification's own arithmetic and against scapy's list of names."""

from __future__ import annotations

import pytest

from netreduce.wire.opcodes import OPCODE_HEADER_BYTES, OPCODE_ROLES, Opcode, Role, opcode_name

RC_REQUEST = Role.SEND | Role.WRITE | Role.READ | Role.ATOMIC | Role.ACK


@pytest.mark.parametrize(
    ("opcode", "header_bytes"),
    [
        (Opcode.SEND_FIRST, 12),
        (Opcode.SEND_ONLY_WITH_IMMEDIATE, 16),
        (Opcode.RDMA_WRITE_FIRST, 28),
        (Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE, 16),
        (Opcode.RDMA_WRITE_ONLY_WITH_IMMEDIATE, 32),
        (Opcode.RDMA_READ_REQUEST, 28),
        (Opcode.RDMA_READ_RESPONSE_FIRST, 16),
        (Opcode.RDMA_READ_RESPONSE_MIDDLE, 12),
        (Opcode.ACKNOWLEDGE, 16),
        (Opcode.ATOMIC_ACKNOWLEDGE, 24),
        (Opcode.FETCH_ADD, 40),
        (Opcode.SEND_ONLY_WITH_INVALIDATE, 16),
        (Opcode.UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, 32),
        (Opcode.UD_SEND_ONLY, 20),
        (Opcode.CNP, 28),
    ],
)
def test_headers_have_the_length_of_the_specification(opcode: Opcode, header_bytes: int) -> None:
    assert OPCODE_HEADER_BYTES[opcode] == header_bytes


def test_an_unreliable_packet_is_never_taken_for_a_reliable_one() -> None:
    for opcode in Opcode:
        if opcode.name.startswith(("UC_", "UD_")):
            assert not OPCODE_ROLES[opcode] & RC_REQUEST, opcode.name
            assert OPCODE_ROLES[opcode] & (Role.UC | Role.UD), opcode.name
        elif opcode is not Opcode.CNP:
            assert OPCODE_ROLES[opcode] & RC_REQUEST, opcode.name


def test_an_unreliable_connection_has_the_headers_of_the_reliable_one() -> None:
    for opcode in range(0x0C):
        assert OPCODE_HEADER_BYTES[opcode + 0x20] == OPCODE_HEADER_BYTES[opcode]


def test_opcodes_outside_the_table_have_no_roles() -> None:
    for value in set(range(256)) - {*Opcode}:
        assert OPCODE_ROLES[value] == 0
        assert opcode_name(value) == f"opcode 0x{value:02x}"


def test_names_and_numbers_are_scapys() -> None:
    roce = pytest.importorskip("scapy.contrib.roce", reason="scapy is the oracle here; install the dev extra")
    for value, name in roce._bth_opcodes.items():
        if OPCODE_ROLES[value]:
            assert opcode_name(value).replace(" ", "_") == name
