"""From rings of packet slots to bursts: what Linux's packet(7) sockets share with the kernel.

Slots are those of PACKET_RX_RING, version 2 of linux/if_packet.h, with a struct virtio_net_hdr before each packet. The
kernel takes the 802.1Q tag out of a frame and tells it aside; here it is put back, since the ICRC does not care but
the network does. A packet that is longer than a slot is a *long* one: the kernel has queued it at the socket. It is
received straight to where it is needed, for its slot has its first bytes.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.compiled import compiled, copy_bytes, fence, memory_at
from netreduce.wire.cutting import (
    NO_TAG,
    SEGMENTS_TAKEN_MAX,
    checksum_is_possible,
    complete,
    kept_bytes,
    look_at,
    place,
    put_frame,
    tag_bytes_of,
)
from netreduce.wire.frames import record_bytes
from netreduce.wire.segmentation import (
    GSO_NONE,
    GSO_TYPE_AT,
    GSO_UDP_L4,
    HEAD_BYTES,
    MAC_BYTES,
    NEEDS_CHECKSUM,
    VNET_BYTES,
    put_part,
    read_le16,
)

_STATUS, _LENGTH, _SNAPLEN, _MAC, _TCI, _TPID = 0, 4, 8, 12, 24, 26
"""Offsets in struct tpacket2_hdr, which a slot starts with."""
STATUS_IS_MINE = 1 << 0
STATUS_COPY = 1 << 1
STATUS_VLAN_VALID = 1 << 4
STATUS_VLAN_TPID_VALID = 1 << 6
TPID_802_1Q = 0x8100
PARTS_PER_LONG = 1 + SEGMENTS_TAKEN_MAX
"""Where a long packet is received: its headers, and its payloads one by one."""


class Long(IntEnum):
    """What comes next, if it is not a frame in a slot."""

    NONE = 0
    IN_SLOT = 1  # a super-frame that must be cut
    QUEUED = 2  # packets on the socket's receive queue


class Seen(IntEnum):
    """What is counted."""

    LOST = 0  # longer than a slot, and the receive queue was full
    MALFORMED = 1
    TOO_LONG = 2  # no super-frames, such as those of TCP
    FILLED = 3  # checksums that the sender had left to its interface
    SUPER_FRAMES = 4


@compiled
def _slot_tag(slot: np.ndarray) -> int:
    """The 802.1Q tag that the kernel took out of a slot's packet, behind its ethertype, or `NO_TAG`."""
    status = read_le16(slot, _STATUS)
    if status & STATUS_VLAN_VALID == 0:
        return NO_TAG
    tpid = read_le16(slot, _TPID) if status & STATUS_VLAN_TPID_VALID else TPID_802_1Q
    return (tpid << 16) | read_le16(slot, _TCI)


@compiled
def _give_back(slot: np.ndarray) -> None:
    """Let the kernel have a slot again."""
    slot[:4].view(np.uint32)[0] = 0


@compiled
def _read_le32(data: np.ndarray, at: int) -> int:
    return read_le16(data, at) | (read_le16(data, at + 2) << 16)


@compiled
def _is_queued(slot: np.ndarray) -> bool:
    mine_and_queued = STATUS_IS_MINE | STATUS_COPY
    return slot[_STATUS] & mine_and_queued == mine_and_queued


@compiled
def _longs_from(ring: np.ndarray, first: int, count: int) -> int:
    """How many slots from `first` on announce queued packets, at most `count`."""
    found = 0
    while found < count and _is_queued(ring[(first + found) % ring.shape[0]]):
        found += 1
    return found


@compiled
def ring_to_burst(
    ring: np.ndarray, first: int, burst: np.ndarray, start: int, time_ps: int, seen: np.ndarray, done: np.ndarray
) -> int:
    """Turn received slots of a packet ring into records, tags put back, checksums filled in; the end of the burst.

    `ring` uint8[n, slot bytes], from slot `first` on; `start` is where in `burst` to go on. It ends before a frame that
    does not fit there, and before a packet that is a super-frame or longer than a slot. `done` (int64[3]) tells the
    slots taken, which are the kernel's again, what comes next (`Long`), and how many of these there are, up to
    the ring's size. `seen` (int64[5], `Seen`) counts.
    """
    count, mine = ring.shape[0], 0
    while mine < count and ring[(first + mine) % count][_STATUS] & STATUS_IS_MINE:
        mine += 1
    fence()
    at, taken = start, 0
    done[1] = Long.NONE.value
    done[2] = 0
    while taken < mine:
        slot = ring[(first + taken) % count]
        length, whole = _read_le32(slot, _SNAPLEN), _read_le32(slot, _LENGTH)
        packet_at, tag = read_le16(slot, _MAC), _slot_tag(slot)
        vnet_at, size = packet_at - VNET_BYTES, length + tag_bytes_of(tag)
        if _is_queued(slot):
            done[1] = Long.QUEUED.value
            done[2] = _longs_from(ring, first + taken, mine - taken)
            break
        if length != whole:
            seen[Seen.LOST.value] += 1
        elif slot[vnet_at + GSO_TYPE_AT] != GSO_NONE:
            done[1] = Long.IN_SLOT.value
            done[2] = 1
            break
        elif at + record_bytes(size) > burst.size:
            break
        elif length < MAC_BYTES or not checksum_is_possible(slot, vnet_at, length):
            seen[Seen.MALFORMED.value] += 1
        else:
            seen[Seen.FILLED.value] += slot[vnet_at] & NEEDS_CHECKSUM
            at = put_frame(burst, at, slot, vnet_at, length, tag, time_ps)
        taken += 1
    fence()
    for i in range(taken):
        _give_back(ring[(first + i) % count])
    done[0] = taken
    return at


@compiled
def _long_size(slot: np.ndarray) -> int:
    """Bytes of a long packet with struct virtio_net_hdr."""
    return VNET_BYTES + _read_le32(slot, _LENGTH)


@compiled
def place_longs(
    ring: np.ndarray,
    first: int,
    count: int,
    burst: np.ndarray,
    start: int,
    messages: np.ndarray,
    parts: np.ndarray,
    scrap: np.ndarray,
) -> int:
    """Tell recvmmsg where in `burst`, from `start` on, the packets belong that slots from `first` on announce.

    Returns how many of `count` fit there and into `messages` (int64[n, 8], struct mmsghdr), whose `parts` (int64[n *
    PARTS_PER_LONG, 2], struct iovec) are filled in. Headers, which the slots have, and packets that make no sense, go
    to `scrap` (uint8[HEAD_BYTES]).
    """
    at, part, number = start, 0, 0
    while number < min(count, messages.shape[0]):
        slot = ring[(first + number) % ring.shape[0]]
        head, size, tag = slot[read_le16(slot, _MAC) - VNET_BYTES :], _long_size(slot), _slot_tag(slot)
        found = look_at(head, size, tag)
        if at + found > burst.size:
            break
        messages[number, 2] = parts.ctypes.data + part * 16
        first_part = part
        part = put_part(parts, part, scrap.ctypes.data, kept_bytes(head, size) if found > 0 else HEAD_BYTES)
        if found > 0:
            part = place(head, size, tag, burst, at, parts, part)
            at += found
        messages[number, 3] = part - first_part
        number += 1
    return number


@compiled
def complete_longs(
    ring: np.ndarray,
    first: int,
    count: int,
    received: int,
    messages: np.ndarray,
    burst: np.ndarray,
    start: int,
    time_ps: int,
    seen: np.ndarray,
) -> int:
    """Make records of `count` packets that `place_longs` has placed, and give their slots back; the end of the burst.

    The first `received` ones have been received. When one is not there, or another, what follows is lost as well:
    there would be a gap in the burst.
    """
    at, is_whole = start, True
    for number in range(count):
        slot = ring[(first + number) % ring.shape[0]]
        size = _long_size(slot)
        is_whole = is_whole and number < received and messages[number, 7] & 0xFFFFFFFF == size
        if is_whole:
            at = _complete_long(slot, burst, at, time_ps, seen)
        else:
            seen[Seen.LOST.value] += 1
        fence()
        _give_back(slot)
    return at


@compiled
def _complete_long(slot: np.ndarray, burst: np.ndarray, at: int, time_ps: int, seen: np.ndarray) -> int:
    """Make records of the packet that `slot` announces and that lies at `at` in `burst`, if it makes sense."""
    head, size, tag = slot[read_le16(slot, _MAC) - VNET_BYTES :], _long_size(slot), _slot_tag(slot)
    found = look_at(head, size, tag)
    if found <= 0:
        seen[Seen.TOO_LONG.value if found == 0 else Seen.MALFORMED.value] += 1
        return at
    seen[Seen.SUPER_FRAMES.value] += 1 if head[GSO_TYPE_AT] == GSO_UDP_L4 else 0
    seen[Seen.FILLED.value] += 1 if head[GSO_TYPE_AT] == GSO_NONE and head[0] & NEEDS_CHECKSUM else 0
    return complete(head, size, tag, burst, at, time_ps)


@compiled
def slot_to_burst(
    slot: np.ndarray, burst: np.ndarray, at: int, time_ps: int, parts: np.ndarray, seen: np.ndarray
) -> int:
    """Cut a super-frame that lies whole in `slot`, and give that back; the end of the burst, or -1 if it has no room.

    `parts` is scratch, as for `place_longs`.
    """
    head, size, tag = slot[read_le16(slot, _MAC) - VNET_BYTES :], _long_size(slot), _slot_tag(slot)
    found = look_at(head, size, tag)
    if at + found > burst.size:
        return -1
    if found > 0:
        source_at = kept_bytes(head, size)
        for part in range(place(head, size, tag, burst, at, parts, 0)):
            copy_bytes(memory_at(parts[part, 0], parts[part, 1]), 0, head, source_at, parts[part, 1])
            source_at += parts[part, 1]
    at = _complete_long(slot, burst, at, time_ps, seen)
    fence()
    _give_back(slot)
    return at
