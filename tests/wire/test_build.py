"""Frames against scapy, which knows RoCEv2 and its ICRC on its own: each reads what the other builds."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import U16, U24, U32, address_pairs, frame_arguments

from netreduce.wire.build import build_frame
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.opcodes import OPCODE_ROLES, Opcode, Role
from netreduce.wire.packet import Parse, make_packet_table, parse_packet

inet = pytest.importorskip("scapy.layers.inet", reason="scapy is the oracle here; install the dev extra")
inet6 = pytest.importorskip("scapy.layers.inet6")
l2 = pytest.importorskip("scapy.layers.l2")
roce = pytest.importorskip("scapy.contrib.roce")
Raw = pytest.importorskip("scapy.packet").Raw

# scapy guesses the payload of UDP from both ports; below this one other protocols might claim it.
SCAPY_PORTS = st.integers(0xC000, 0xFFFF)


@given(frame_arguments(), SCAPY_PORTS)
def test_scapy_reads_our_frames_and_computes_the_same_icrc(arguments: dict[str, Any], port: int) -> None:
    frame = build_frame(**arguments | {"udp_source_port": port}).tobytes()
    read = l2.Ether(frame)
    bth = read[roce.BTH]
    ip = read[inet.IP] if inet.IP in read else read[inet6.IPv6]
    assert (bth.opcode, bth.psn, bth.dqpn, bth.pkey) == tuple(
        arguments[name] for name in ("opcode", "psn", "destination_qpn", "p_key")
    )
    assert bth.padcount == -len(arguments["payload"]) % 4
    assert (bth.solicited, bth.migreq, bth.fecn, bth.becn, bth.ackreq) == tuple(
        arguments[name] for name in ("solicited", "migrated", "fecn", "becn", "ack_request")
    )
    for seen, wanted in ((ip.src, arguments["source_ip"]), (ip.dst, arguments["destination_ip"])):
        assert ipaddress.ip_address(seen) == ipaddress.ip_address(wanted)
    if arguments["vlan"] is not None:
        dot1q = read[l2.Dot1Q]
        assert dot1q.prio << 13 | dot1q.dei << 12 | dot1q.vlan == arguments["vlan"]
    if roce.AETH in read:
        assert (read[roce.AETH].syndrome, read[roce.AETH].msn) == (arguments["syndrome"], arguments["msn"])
    bth.icrc = None  # scapy computes it anew, and lengths and the IP checksum with it
    ip_lengths = ("len", "chksum") if inet.IP in read else ("plen",)
    for name in ip_lengths:
        delattr(ip, name)
    del read[inet.UDP].len
    assert bytes(read) == frame


@given(address_pairs(), U24, U24, U32, U16, st.binary(max_size=300), st.none() | st.integers(0, 4095), SCAPY_PORTS)
def test_we_read_scapys_frames_and_find_their_icrc_good(
    addresses: dict[str, str],
    psn: int,
    qpn: int,
    flow: int,
    identifier: int,
    payload: bytes,
    vlan: int | None,
    port: int,
) -> None:
    source, destination = addresses["source_ip"], addresses["destination_ip"]
    if ":" in source:
        ip = inet6.IPv6(src=source, dst=destination, tc=flow & 0xFF, fl=flow >> 12, hlim=flow >> 8 & 0xFF)
    else:
        ip = inet.IP(src=source, dst=destination, tos=flow & 0xFF, ttl=flow >> 8 & 0xFF, id=identifier, flags=flow & 2)
    tag = l2.Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    if vlan is not None:
        tag /= l2.Dot1Q(vlan=vlan)
    pad = -len(payload) % 4
    bth = roce.BTH(opcode=Opcode.SEND_MIDDLE, psn=psn, dqpn=qpn, padcount=pad, ackreq=flow & 1)
    frame = bytes(tag / ip / inet.UDP(sport=port, dport=4791) / bth / Raw(payload + bytes(pad)))
    packet, data = make_packet_table()[0], np.frombuffer(bytearray(frame), np.uint8)
    assert parse_packet(data, packet) == Parse.OK
    assert (packet.psn, packet.destination_qpn, packet.payload_bytes) == (psn, qpn, len(payload))
    assert icrc_is_good(data, packet)


def test_a_field_that_the_opcode_does_not_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="carries no field rkey"):
        build_frame(Opcode.SEND_ONLY, rkey=5)
    with pytest.raises(ValueError, match="different IP versions"):
        build_frame(Opcode.SEND_ONLY, source_ip="::1")
    with pytest.raises(ValueError, match="6 are needed"):
        build_frame(Opcode.SEND_ONLY, source_mac="02:00")


def test_defaults_are_what_the_opcode_wants() -> None:
    packet = make_packet_table()[0]
    for opcode in Opcode:
        payload = b"data" if OPCODE_ROLES[opcode] & Role.PAYLOAD else b""
        assert parse_packet(build_frame(opcode, payload), packet) == Parse.OK, opcode.name
        assert packet.becn == (opcode is Opcode.CNP)
        if OPCODE_ROLES[opcode] & Role.RETH:
            assert packet.dma_length == len(payload)
