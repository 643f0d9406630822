"""A small conversation for the tests of `show`: INA messages of a rank, as views, without a capture file."""

from __future__ import annotations

import numpy as np

from netreduce.wire.build import build_frame
from netreduce.wire.capture import CapturedFrame
from netreduce.wire.conversations import Conversations
from netreduce.wire.dissect import Dissector, FrameView
from netreduce.wire.ina import DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.opcodes import Opcode
from netreduce.wire.pcap import Direction

MTU = 256
RANK_IPS = ("10.78.0.1", "10.78.0.2", "10.78.0.3")


def message_frames(
    message_id: int, first_psn: int, rank: int = 0, packets: int = 4, ring_id: int = 3
) -> list[np.ndarray]:
    """The frames of one message of `rank` to its successor."""
    length = packets * MTU - 16 - 100
    data = pack_ina(3, rank, message_id, length, DataType.FLOAT32, ReduceOp.SUM, InaFlag.START) + bytes(length)
    first, last = (Opcode.SEND_FIRST, Opcode.SEND_LAST) if packets > 1 else (Opcode.SEND_ONLY, Opcode.SEND_ONLY)
    frames = []
    for i in range(packets):
        opcode = first if i == 0 else last if i == packets - 1 else Opcode.SEND_MIDDLE
        frames.append(
            build_frame(
                opcode,
                data[i * MTU : (i + 1) * MTU],
                source_ip=RANK_IPS[rank],
                destination_ip=RANK_IPS[(rank + 1) % len(RANK_IPS)],
                destination_qpn=0x20 + rank,
                psn=(first_psn + i) & 0xFFFFFF,
            )
        )
    return frames


def answer(rank: int, psn: int, syndrome: int = 0x1F) -> np.ndarray:
    """An acknowledgement to `rank` from its successor."""
    return build_frame(
        Opcode.ACKNOWLEDGE,
        source_ip=RANK_IPS[(rank + 1) % len(RANK_IPS)],
        destination_ip=RANK_IPS[rank],
        destination_qpn=0x40 + rank,
        psn=psn,
        syndrome=syndrome,
    )


class Watcher:
    """Shows frames one by one, as `netreduce show` does."""

    def __init__(self) -> None:
        self._dissector = Dissector()
        self._conversations = Conversations()
        self._count = 0

    def see(
        self, frame: np.ndarray | bytes, port: str = "", direction: Direction = Direction.UNKNOWN, wire_bytes: int = 0
    ) -> FrameView:
        """The completed view of a frame; `wire_bytes` if the capture cut it."""
        data = bytes(frame)
        self._count += 1
        captured = CapturedFrame(self._count, self._count * 1000, data, max(wire_bytes, len(data)), port, direction)
        view, payload = self._dissector.view(captured)
        self._conversations.follow(view, payload)
        return view
