"""What only the frames before can tell: messages of packets in the middle, retransmissions, gaps."""

from __future__ import annotations

import numpy as np
import pytest
from tests.wire.conversation import Watcher, answer, message_frames

from netreduce.wire.build import build_frame
from netreduce.wire.conversations import MESSAGES_KEPT, RESTART_DISTANCE
from netreduce.wire.dissect import FrameView
from netreduce.wire.opcodes import Opcode
from netreduce.wire.pcap import Direction


def place(view: FrameView) -> tuple[int, int, int, int, int]:
    return view.ring_id, view.rank, view.message_id, view.slot, view.message_packets


UNKNOWN = (-1, -1, -1, -1, -1)


def test_packets_in_the_middle_name_their_message_across_the_wrap_of_the_psn() -> None:
    watcher = Watcher()
    views = [watcher.see(frame) for frame in message_frames(5, 0xFFFFFE)]
    assert [place(view) for view in views] == [(3, 0, 5, slot, 4) for slot in range(4)]
    assert [view.ina_header for view in views] == ["float32 sum 908 B start", "", "", ""]
    assert not any(view.gap or view.retransmitted for view in views)


def test_a_message_of_one_packet_is_found() -> None:
    assert place(Watcher().see(message_frames(0, 7, packets=1)[0])) == (3, 0, 0, 0, 1)


def test_packets_whose_first_was_not_seen_belong_to_no_message() -> None:
    watcher = Watcher()
    assert [place(watcher.see(frame)) for frame in message_frames(0, 7)[1:]] == [UNKNOWN] * 3


def test_a_replay_in_the_middle_of_the_message_before_the_newest_is_found() -> None:
    watcher = Watcher()
    old, new = message_frames(0, 100), message_frames(1, 104)
    for frame in old + new:
        watcher.see(frame)
    view = watcher.see(old[2])
    assert place(view) == (3, 0, 0, 2, 4)
    assert view.retransmitted


def test_a_gap_is_counted_once_and_the_repeat_is_a_retransmission() -> None:
    watcher = Watcher()
    frames = message_frames(0, 0, packets=6)
    views = [watcher.see(frame) for frame in [*frames[:2], *frames[4:], *frames[2:]]]
    assert [view.gap for view in views] == [0, 0, 2, 0, 0, 0, 0, 0]
    assert [view.retransmitted for view in views] == [False] * 4 + [True] * 4


def test_a_packet_seen_coming_in_and_going_out_is_no_retransmission() -> None:
    watcher = Watcher()
    frames = message_frames(0, 0)
    views = [watcher.see(frame, "port 0", Direction.INBOUND) for frame in frames]
    views += [watcher.see(frame, "port 1", Direction.OUTBOUND) for frame in frames]
    assert not any(view.retransmitted or view.gap for view in views)


def test_a_new_connection_under_an_old_number_is_no_loss() -> None:
    watcher = Watcher()
    watcher.see(message_frames(0, 0)[0])
    view = watcher.see(message_frames(0, RESTART_DISTANCE + 1)[0])
    assert (view.gap, view.retransmitted) == (0, False)


def test_a_read_request_takes_as_many_psns_as_its_answer() -> None:
    watcher = Watcher()
    watcher.see(build_frame(Opcode.SEND_ONLY, psn=4))
    watcher.see(build_frame(Opcode.RDMA_READ_REQUEST, psn=5, dma_length=4096))
    view = watcher.see(build_frame(Opcode.SEND_ONLY, psn=21))
    assert (view.gap, view.retransmitted) == (0, False)


def test_a_damaged_packet_is_shown_with_its_message_but_changes_nothing() -> None:
    watcher = Watcher()
    frames = message_frames(0, 0)
    watcher.see(frames[0])
    damaged = frames[1].copy()
    damaged[-9] ^= 1
    assert (watcher.see(damaged).icrc, place(watcher.see(damaged))) == ("bad", (3, 0, 0, 1, 4))
    view = watcher.see(frames[1])
    assert (view.gap, view.retransmitted) == (0, False)


@pytest.mark.parametrize("syndrome", [0x1F, 0x60, 0x2C])
def test_answers_name_the_message_they_are_about(syndrome: int) -> None:
    watcher = Watcher()
    for rank in range(3):
        for frame in message_frames(9, 1000 * rank, rank):
            watcher.see(frame)
    view = watcher.see(answer(1, 1002, syndrome))
    assert place(view) == (3, 1, 9, 2, 4)
    assert view.acknowledges


def test_an_answer_that_could_be_about_two_connections_names_none() -> None:
    watcher = Watcher()
    for frame in message_frames(0, 0):
        watcher.see(frame)
        twin = frame.copy()
        watcher.see(twin)
    header = message_frames(0, 0)[0][54:70].tobytes()
    watcher.see(
        build_frame(
            Opcode.SEND_FIRST, header.ljust(256, b"\0"), source_ip="10.78.0.1", destination_ip="10.78.0.2",
            destination_qpn=0x99, psn=1,
        )
    )  # fmt: skip
    assert place(watcher.see(answer(0, 2))) == UNKNOWN
    assert place(watcher.see(answer(0, 4))) == (3, 0, 0, 3, 4), "only the second connection has this one"


def test_ordinary_data_is_not_taken_for_an_ina_header(rng: np.random.Generator) -> None:
    watcher = Watcher()
    for psn in range(500):
        data = rng.bytes(64)
        assert watcher.see(build_frame(Opcode.SEND_ONLY, data, psn=psn)).ring_id == -1
    assert watcher.see(build_frame(Opcode.SEND_ONLY, bytes(64), psn=501)).ring_id == -1


@pytest.mark.parametrize(("at", "value"), [(12, 9), (13, 5), (14, 2), (15, 8), (2, 1), (11, 3)])
def test_a_header_with_one_wrong_field_is_none(at: int, value: int) -> None:
    """dtype, operation, version, flags, rank and length, one after the other."""
    payload = bytearray(message_frames(0, 0, packets=1)[0][54:-4].tobytes())
    payload[at] = value
    assert Watcher().see(build_frame(Opcode.SEND_ONLY, bytes(payload))).ring_id == -1


def test_a_connection_forgets_the_oldest_of_very_many_messages() -> None:
    watcher = Watcher()
    for i in range(MESSAGES_KEPT + 1):
        watcher.see(message_frames(i, i, packets=1)[0])
    assert place(watcher.see(answer(0, 0))) == UNKNOWN
    assert place(watcher.see(answer(0, 1))) == (3, 0, 1, 0, 1)
