"""Capture files of both kinds, read: pcap and pcapng (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng).

The headers, blocks and options are taken apart by dpkt. Walking them is done here, because dpkt's own readers know one
interface, one section, and times in floating point. A capture is untrusted: every length is checked before it is read,
and a damaged file gives its frames up to the damage and then one `CaptureError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import dpkt
from dpkt import pcap, pcapng

from netreduce.errors import CaptureError
from netreduce.wire.pcap import LINK_ETHERNET, NS_PER_S, OPTION_PACKET_FLAGS, Direction

CAPTURED_BYTES_MAX = 256 * 1024
"""Longest frame that is believed: the largest snap length of libpcap."""
BLOCK_BYTES_MAX = CAPTURED_BYTES_MAX + 64 * 1024
"""Longest pcapng block that is taken apart: a frame with its options."""
INTERFACES_MAX = 4096
SKIP_BYTES = 64 * 1024

_LINK_NAMES = {
    0: "BSD loopback",
    101: "raw IP",
    105: "IEEE 802.11",
    113: "Linux cooked, as 'tcpdump -i any' makes",
    197: "ERF",
    247: "InfiniBand",
    276: "Linux cooked v2, as 'tcpdump -i any' makes",
}

_NANOSECOND_MAGICS = (pcap.TCPDUMP_MAGIC_NANO, pcap.PMUDPCT_MAGIC_NANO)
_LITTLE_ENDIAN_MAGICS = (pcap.PMUDPCT_MAGIC, pcap.PMUDPCT_MAGIC_NANO, pcap.PACPDOM_MAGIC)
_SECTION_MAGIC = struct.pack(">I", pcapng.PCAPNG_BT_SHB)
_PACKET_BLOCKS = (pcapng.PCAPNG_BT_EPB, pcapng.PCAPNG_BT_PB, pcapng.PCAPNG_BT_SPB)
_DPKT_FAULTS = (dpkt.Error, struct.error, UnicodeError, IndexError)
"""What dpkt's unpacking raises for bytes that make no sense."""


class CapturedFrame(NamedTuple):
    """One frame of a capture file."""

    number: int  # from 1, as Wireshark counts
    time_ns: int  # since 1970; 0 if the file does not say
    data: bytes  # from the destination MAC on
    wire_bytes: int  # length on the wire: more than `len(data)` if the capture cut the frame
    interface_name: str  # empty in a pcap file, which has one interface
    direction: Direction


class _Interface(NamedTuple):
    name: str
    link_type: int
    units_per_s: int
    offset_s: int


class _Stream:
    """A binary stream that knows its name and offset, for error messages."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self.offset = 0
        self.frames = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.offset += len(data)
        return data

    def need(self, size: int, what: str) -> bytes:
        start = self.offset
        data = self.read(size)
        if len(data) < size:
            self.offset = start
            raise self.fault(f"the file ends inside {what}")
        return data

    def skip(self, size: int, what: str) -> None:
        while size > 0:
            size -= len(self.need(min(size, SKIP_BYTES), what))

    def fault(self, problem: str) -> CaptureError:
        return CaptureError(f"{self._name}: {problem}, at byte {self.offset}, after {self.frames} packets")

    def frame(
        self, time_ns: int, data: bytes, wire_bytes: int, interface: str = "", direction: Direction = Direction.UNKNOWN
    ) -> CapturedFrame:
        self.frames += 1
        return CapturedFrame(self.frames, time_ns, data, max(wire_bytes, len(data)), interface, direction)

    def check_link(self, link_type: int) -> None:
        if link_type != LINK_ETHERNET:
            name = _LINK_NAMES.get(link_type, "see tcpdump.org/linktypes.html")
            raise self.fault(f"frames of link type {link_type} ({name}); capture on an Ethernet interface instead")


def read_capture(stream: BinaryIO, name: str) -> Iterator[CapturedFrame]:
    """The frames of a pcap or pcapng file of Ethernet frames, in file order; `name` is for error messages.

    Either byte order, microseconds or nanoseconds, several interfaces and sections; `stream` need not be seekable.
    Raises `CaptureError`, after the frames before the damage, if the file is cut off, damaged, or of another kind.
    """
    source = _Stream(stream, name)
    magic = source.read(4)
    if magic == _SECTION_MAGIC:
        return _read_pcapng(source)
    if int.from_bytes(magic, "big") in pcap.MAGIC_TO_PKT_HDR:
        return _read_pcap(source, magic)
    hint = "; it is compressed, use 'gunzip' first" if magic[:2] == b"\x1f\x8b" else ""
    start = f"starts with {magic.hex()}" if magic else "is empty"
    raise CaptureError(f"{name}: not a pcap or pcapng file, it {start}{hint}")


def _read_pcap(source: _Stream, magic: bytes) -> Iterator[CapturedFrame]:
    rest = source.need(pcap.FileHdr.__hdr_len__ - len(magic), "the file header")
    number = int.from_bytes(magic, "big")
    header = (pcap.LEFileHdr if number in _LITTLE_ENDIAN_MAGICS else pcap.FileHdr)(magic + rest)
    source.check_link(header.linktype & 0xFFFF)  # the upper bits tell the length of the FCS
    unit_ns = 1 if number in _NANOSECOND_MAGICS else 1000
    record_type = pcap.MAGIC_TO_PKT_HDR[number]
    while head := source.read(record_type.__hdr_len__):
        what = f"packet {source.frames + 1}"
        if len(head) < record_type.__hdr_len__:
            source.offset -= len(head)
            raise source.fault(f"the file ends inside the header of {what}")
        record = record_type(head)
        if record.caplen > CAPTURED_BYTES_MAX:
            raise source.fault(f"{what} claims {record.caplen} bytes, more than any capture has")
        data = source.need(record.caplen, what)
        yield source.frame(record.tv_sec * NS_PER_S + record.tv_usec * unit_ns, data, record.len)


def _printable(text: str) -> str:
    """`text` without control characters: a name in a file must not steer the terminal that shows it."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


class _Section:
    """One section of a pcapng file: a byte order, and the interfaces described so far."""

    def __init__(self, source: _Stream, head: bytes) -> None:
        """`head` is the section header block up to its byte-order magic."""
        marks = {"<": struct.pack("<I", pcapng.BYTE_ORDER_MAGIC), ">": struct.pack(">I", pcapng.BYTE_ORDER_MAGIC)}
        self.order = next((order for order, mark in marks.items() if mark == head[8:]), "")
        if not self.order:
            raise source.fault("a section without byte-order magic")
        suffix = "LE" if self.order == "<" else ""
        self._interface_block: Any = getattr(pcapng, "InterfaceDescriptionBlock" + suffix)
        self._packet_blocks: dict[int, Any] = {
            pcapng.PCAPNG_BT_EPB: getattr(pcapng, "EnhancedPacketBlock" + suffix),
            pcapng.PCAPNG_BT_PB: getattr(pcapng, "PacketBlock" + suffix),
        }
        self._source = source
        self._interfaces: list[_Interface] = []

    def describe_interface(self, block: bytes) -> None:
        """Take an interface description block."""
        if len(self._interfaces) == INTERFACES_MAX:
            raise self._source.fault(f"more than {INTERFACES_MAX} interfaces")
        description = self._interface_block(block)
        options = {option.code: option.data for option in description.opts}
        resolution = options.get(pcapng.PCAPNG_OPT_IF_TSRESOL, b"\x06")[0]
        name = options.get(pcapng.PCAPNG_OPT_IF_NAME) or str(len(self._interfaces)).encode()
        self._interfaces.append(
            _Interface(
                _printable(name.rstrip(b"\0").decode("utf-8", "replace")),
                description.linktype,
                (2 if resolution & 0x80 else 10) ** (resolution & 0x7F),
                struct.unpack(self.order + "q", options.get(pcapng.PCAPNG_OPT_IF_TSOFFSET, bytes(8)))[0],
            )
        )

    def _interface(self, index: int) -> _Interface:
        if index >= len(self._interfaces):
            raise self._source.fault(f"a packet of interface {index}, which is not described")
        self._source.check_link(self._interfaces[index].link_type)
        return self._interfaces[index]

    def packet(self, kind: int, block: bytes) -> CapturedFrame:
        """Take a packet block of either kind that names an interface, or a simple one, which has no time."""
        if kind == pcapng.PCAPNG_BT_SPB:
            (wire_bytes,) = struct.unpack_from(self.order + "I", block, 8)
            return self._source.frame(0, block[12:-4][:wire_bytes], wire_bytes, self._interface(0).name)
        packet = self._packet_blocks[kind](block)
        interface = self._interface(packet.iface_id)
        if len(packet.pkt_data) < packet.caplen:
            raise self._source.fault("a packet that is longer than its block")
        units = packet.ts_high << 32 | packet.ts_low
        time_ns = units * NS_PER_S // interface.units_per_s + interface.offset_s * NS_PER_S
        flags = next((option.data for option in packet.opts if option.code == OPTION_PACKET_FLAGS), bytes(4))
        direction = struct.unpack(self.order + "I", flags)[0] & 3
        known = Direction(direction) if direction < 3 else Direction.UNKNOWN
        return self._source.frame(time_ns, packet.pkt_data, packet.pkt_len, interface.name, known)


def _read_pcapng(source: _Stream) -> Iterator[CapturedFrame]:
    section: _Section | None = None
    head = _SECTION_MAGIC + source.need(4, "a block's header")
    while head:
        if head[:4] == _SECTION_MAGIC:
            head += source.need(4, "a section header")
            section = _Section(source, head)
        assert section is not None, "the file starts with a section"
        kind, length = struct.unpack(section.order + "II", head[:8])
        if length % 4 or length < len(head) + 4:
            raise source.fault(f"a block claims the impossible length {length}")
        wanted = kind in _PACKET_BLOCKS or kind == pcapng.PCAPNG_BT_IDB
        if wanted and length > BLOCK_BYTES_MAX:
            raise source.fault(f"a block claims {length} bytes, more than any packet has")
        if wanted:
            block = head + source.need(length - len(head), "a block")
            if block[-4:] != head[4:8]:
                raise source.fault("a block's two lengths disagree")
            try:
                if kind == pcapng.PCAPNG_BT_IDB:
                    section.describe_interface(block)
                else:
                    yield section.packet(kind, block)
            except _DPKT_FAULTS as error:
                raise source.fault(f"a damaged block ({error or type(error).__name__})") from error
        else:
            source.skip(length - len(head), "a block")
        head = source.read(8)
        if 0 < len(head) < 8:
            source.offset -= len(head)
            raise source.fault("the file ends inside a block's header")
