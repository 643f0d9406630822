"""Packets of unreliable services that name a reliable queue pair: dropped, counted, and of no consequence."""

from __future__ import annotations

import pytest
from tests.nic.harness import IPS, MACS, connect, make_wire

from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.opcodes import OPCODE_ROLES, Opcode, Role

OTHERS = [opcode for opcode in Opcode if OPCODE_ROLES[opcode] & (Role.UC | Role.UD)]


@pytest.mark.parametrize("opcode", OTHERS, ids=lambda opcode: opcode.name)
def test_a_packet_of_another_service_neither_delivers_nor_breaks_the_queue_pair(opcode: Opcode) -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(1, 0, 64)
    stranger = build_frame(
        opcode, b"not reliable", source_ip=IPS[0], destination_ip=IPS[1], source_mac=MACS[0], destination_mac=MACS[1],
        destination_qpn=b.qp.qp_num, psn=0,
    )  # fmt: skip
    b.nic.receive(0, build_burst([stranger]), wire.now_ps)
    wire.run()
    assert (b.completions(), wire.sent(1)) == ([], [])
    assert b.nic.counters()["drop_unsupported"] == 1
    a.memory[:4] = 7
    a.send(2, 0, 4)
    wire.run()
    assert b.statuses() == [(1, "IBV_WC_SUCCESS")]
    assert b.memory[:4].tolist() == [7] * 4
