"""One line a frame, in the columns that a network engineer scans: when, where, who, what, which message, ICRC."""

from __future__ import annotations

from datetime import datetime, timezone

from netreduce.wire.dissect import FrameView
from netreduce.wire.pcap import NS_PER_S


def utc_text(time_ns: int) -> str:
    """A time since 1970 as date and time of day, with nanoseconds."""
    seconds, rest = divmod(time_ns, NS_PER_S)
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    except (ValueError, OverflowError, OSError):  # a file may claim any time
        return f"{seconds}.{rest:09d}s"


def seconds_text(span_ns: int) -> str:
    """A span in seconds, with nanoseconds."""
    return f"{'-' if span_ns < 0 else ''}{abs(span_ns) // NS_PER_S}.{abs(span_ns) % NS_PER_S:09d}"


def frame_line(view: FrameView, time: str) -> str:
    """The line of a frame, with `time` as its time column."""
    place = f"{view.port} {view.direction}".strip()
    columns = [f"{view.number:>6} {time:>13}", *([f"{place:<10}"] if place else [])]
    if view.source_ip:
        columns.append(f"{view.source_ip:>11} > {view.destination_ip:<11}")
    else:
        columns.append(f"{view.source_mac} > {view.destination_mac}")
    if view.vlan >= 0:
        columns.append(f"vlan {view.vlan}")
    if view.opcode < 0:
        columns += [view.protocol, view.note]
    else:
        columns.append(f"{view.opcode_name:<18} qp 0x{view.destination_qpn:06x} psn {view.psn:<8}")
        columns += _details(view)
    columns += _verdict(view)
    return "  ".join(column for column in columns if column)


def _details(view: FrameView) -> list[str]:
    """What the extension headers and the frames before say about a packet."""
    columns = []
    if view.acknowledgement:
        columns.append(f"{view.acknowledgement}, msn {view.msn}")
    if view.payload_bytes > 0 or not view.acknowledgement:
        columns.append(f"{view.payload_bytes} B" if view.payload_bytes >= 0 else "")
    if view.pad_bytes:
        columns.append(f"pad {view.pad_bytes}")
    if view.ring_id >= 0:
        columns.append(
            f"{'for ' if view.acknowledges else ''}ring {view.ring_id} rank {view.rank} msg {view.message_id}"
            f" slot {view.slot}/{view.message_packets}{f' [{view.ina_header}]' if view.ina_header else ''}"
        )
    if view.rkey >= 0:
        columns.append(f"va 0x{view.remote_address:x} rkey 0x{view.rkey:x} len {view.dma_length}")
    if view.source_qpn >= 0:
        columns.append(f"from qp 0x{view.source_qpn:06x} qkey 0x{view.q_key:x}")
    if view.immediate >= 0:
        columns.append(f"imm 0x{view.immediate:08x}")
    return columns


def _verdict(view: FrameView) -> list[str]:
    """Marks, and whether the frame is sound."""
    marks = {
        "ackreq": view.ack_request,
        "solicited": view.solicited,
        "CE": view.congestion_experienced,
        "FECN": view.fecn,
        "BECN": view.becn,
        "retransmission": view.retransmitted,
    }
    columns = [name for name, is_set in marks.items() if is_set]
    if view.p_key >= 0:
        columns.append(f"pkey 0x{view.p_key:04x}")
    if view.gap:
        columns.append(f"gap of {view.gap}")
    if view.captured_bytes >= 0:
        columns.append(f"captured {view.captured_bytes} of {view.wire_bytes} bytes")
    if view.problem:
        columns.append(f"MALFORMED: {view.problem}")
    elif view.icrc == "bad":
        columns.append(f"ICRC BAD (found {view.icrc_found}, right is {view.icrc_expected})")
    elif view.icrc:
        columns.append(f"icrc {view.icrc}")
    return columns
