"""Hypothesis strategies for frames: arguments of `build_frame`, over opcodes, sizes, IP versions and VLAN tags."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from netreduce.wire.opcodes import OPCODE_ROLES, Opcode, Role

U8, U16, U24, U32 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 24, 32))
U64 = st.integers(0, (1 << 64) - 1)
PAYLOAD_BYTES_MAX = 1100


@st.composite
def address_pairs(draw: st.DrawFn) -> dict[str, str]:
    version = draw(st.sampled_from((4, 6)))
    addresses = st.ip_addresses(v=version).map(str)
    return {"source_ip": draw(addresses), "destination_ip": draw(addresses)}


@st.composite
def extension_fields(draw: st.DrawFn, roles: int) -> dict[str, int]:
    fields = {}
    for role, names in {
        Role.RETH: {"remote_address": U64, "rkey": U32, "dma_length": U32},
        Role.ATOMIC_ETH: {"remote_address": U64, "rkey": U32, "swap": U64, "compare": U64},
        Role.AETH: {"syndrome": U8, "msn": U24},
        Role.DETH: {"q_key": U32, "source_qpn": U24},
        Role.IMMEDIATE: {"immediate": U32},
        Role.INVALIDATE: {"invalidate_rkey": U32},
    }.items():
        if roles & role:
            fields |= {name: draw(values) for name, values in names.items()}
    return fields


@st.composite
def frame_arguments(draw: st.DrawFn, opcodes: st.SearchStrategy[int] | None = None) -> dict[str, Any]:
    """Keyword arguments of `build_frame`; every field of every header is drawn."""
    opcode = draw(st.sampled_from(list(Opcode)) if opcodes is None else opcodes)
    roles = int(OPCODE_ROLES[opcode])
    has_payload = bool(roles & Role.PAYLOAD)
    return {
        "opcode": opcode,
        "payload": draw(st.binary(max_size=PAYLOAD_BYTES_MAX)) if has_payload else b"",
        **draw(address_pairs()),
        "vlan": draw(st.none() | st.integers(1, 0xFFFF)),
        "traffic_class": draw(U8),
        "hop_limit": draw(U8),
        "udp_source_port": draw(U16.filter(lambda port: port != 4791)),
        "destination_qpn": draw(U24),
        "psn": draw(U24),
        "p_key": draw(U16),
        **{name: draw(st.booleans()) for name in ("ack_request", "solicited", "migrated", "fecn", "becn")},
        **draw(extension_fields(roles)),
    }
