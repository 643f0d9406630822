"""Hostile and contradictory senders: dropped, counted and named, never summed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.switch.switch_harness import Ring, drain, make_ring, powers_of_ten, total_of

from netreduce.wire.build import build_frame
from netreduce.wire.control import Geometry, Mismatch
from netreduce.wire.ina import DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.opcodes import Opcode

TRUTH = (7, 0, 0, 752, DataType.FLOAT32, ReduceOp.SUM, InaFlag(3))
LIES = {
    "ring": pack_ina(8, 0, 0, 752, DataType.FLOAT32, ReduceOp.SUM, InaFlag(3)),
    "rank": pack_ina(7, 1, 0, 752, DataType.FLOAT32, ReduceOp.SUM, InaFlag(3)),
    "message": pack_ina(7, 0, 1, 752, DataType.FLOAT32, ReduceOp.SUM, InaFlag(3)),
    "odd_length": pack_ina(7, 0, 0, 753, DataType.FLOAT32, ReduceOp.SUM, InaFlag(3)),
    "too_long": pack_ina(7, 0, 0, 756, DataType.FLOAT32, ReduceOp.SUM, InaFlag(3)),
    "huge": pack_ina(7, 0, 0, 0xFFFFFFF0, DataType.FLOAT32, ReduceOp.SUM, InaFlag(3)),
    "dtype_0": pack_ina(7, 0, 0, 752, 0, ReduceOp.SUM, InaFlag(3)),
    "dtype": pack_ina(7, 0, 0, 752, 255, ReduceOp.SUM, InaFlag(3)),
    "op_0": pack_ina(7, 0, 0, 752, DataType.FLOAT32, 0, InaFlag(3)),
    "op": pack_ina(7, 0, 0, 752, DataType.FLOAT32, 5, InaFlag(3)),
    "flag": pack_ina(7, 0, 0, 752, DataType.FLOAT32, ReduceOp.SUM, 8),
    "version": pack_ina(*TRUTH)[:14] + b"\x02\x03",
}


class TestHostileInput:
    """A good ICRC proves nothing: whoever sends can compute it."""

    @pytest.mark.parametrize(
        "header",
        LIES.values(),
        ids=LIES,
    )
    def test_a_lying_ina_header_is_dropped_and_counted(self, header: bytes) -> None:
        ring = make_ring(2)
        datas = powers_of_ten(2)
        ring.give(0, *ring.message(0, 0, datas[0], ina=header, psn=ring.first_psns[0]))
        ring.give(1, *ring.message(1, 0, datas[1]))
        counters = ring.switch.ring_counters(7)
        assert counters["drop_bad_ina_header"] == 1
        assert counters["packets_spliced"] == 0
        ring.give(0, *ring.message(0, 0, datas[0]))
        assert ring.result(0) == total_of(datas), "the truth is still welcome"

    def test_a_shorter_length_than_was_sent_is_not_summed(self) -> None:
        ring = make_ring(2)
        ina = pack_ina(7, 0, 0, 744, DataType.FLOAT32, ReduceOp.SUM, InaFlag(3))
        ring.give(0, *ring.message(0, 0, powers_of_ten(2)[0], ina=ina))
        assert ring.switch.ring_counters(7)["drop_bad_packet_length"] == 1

    @pytest.mark.parametrize("dtype", [DataType.FLOAT32, DataType.FLOAT64])
    def test_nothing_of_a_first_packet_that_is_cut_short_is_believed(self, dtype: DataType) -> None:
        """Found by fuzzing: its header named the message, and another one, at the same PSN, brought the data."""
        ring = make_ring(2)
        datas = powers_of_ten(2)
        header = pack_ina(7, 1, 0, 752, dtype, ReduceOp.SUM, InaFlag(3))
        psn = ring.first_psns[1]
        cut = build_frame(Opcode.SEND_FIRST, header + bytes(100), **ring.addresses(1), psn=psn)
        ring.give(1, cut)
        assert ring.switch.ring_counters(7)["drop_bad_packet_length"] == 1
        ring.give(0, *ring.message(0, 0, datas[0]))
        ring.give(1, *ring.message(1, 0, datas[1]))
        assert ring.result(0) == ring.result(1) == total_of(datas)

    def test_a_message_that_does_not_start_with_an_ina_header_is_dropped(self) -> None:
        ring = make_ring(2)
        _, middle, _ = ring.message(0, 0, powers_of_ten(2)[0])
        ring.next_psns[0] = ring.first_psns[0]
        _, wrong, last = ring.message(0, 0, powers_of_ten(2)[0], psn=(ring.first_psns[0] - 1) & 0xFFFFFF)
        ring.give(0, wrong, middle, last)
        assert ring.switch.ring_counters(7)["drop_bad_ina_header"] == 1
        assert ring.switch.ring_counters(7)["payload_bytes_in"] == 0

    def test_an_opcode_in_the_wrong_place_is_dropped(self) -> None:
        ring = make_ring(2)
        first, middle, last = ring.message(0, 0, powers_of_ten(2)[0])
        _, early_last = ring.message(0, 0, powers_of_ten(2, 124)[0], psn=ring.first_psns[0])
        again, _, _ = ring.message(0, 1, powers_of_ten(2)[0], psn=(ring.first_psns[0] + 1) & 0xFFFFFF)
        ring.give(0, first, early_last, again, middle, last)
        assert ring.switch.ring_counters(7)["drop_bad_packet_length"] == 2

    def test_a_broken_icrc_is_dropped_counted_and_never_summed(self) -> None:
        ring = make_ring(2)
        datas = powers_of_ten(2)
        frames = ring.message(0, 0, datas[0])
        broken = [frame.copy() for frame in frames]
        for frame in broken:
            frame[100] ^= 1
        ring.give(0, *broken)
        ring.give(1, *ring.message(1, 0, datas[1]))
        assert ring.switch.ring_counters(7)["icrc_failures"] == 3
        assert ring.switch.ring_counters(7)["packets_spliced"] == 0
        ring.give(0, *frames)
        assert ring.result(0) == total_of(datas)

    def test_a_ring_address_from_another_port_is_not_aggregated(self) -> None:
        ring = make_ring(3)
        frames = ring.message(0, 0, powers_of_ten(3)[0])
        ring.give(2, *frames)
        assert ring.switch.counters()["drop_wrong_port"] == 3, "the MAC address belongs to another port"
        for frame in frames:
            frame[6:12] = [2, 0, 0, 0, 0, 0x77]
        ring.give(2, *frames)
        assert ring.switch.ring_counters(7)["drop_wrong_port"] == 3, "so does the IP address"
        assert ring.switch.ring_counters(7)["payload_bytes_in"] == 0

    def test_a_sender_that_runs_ahead_of_the_window_cannot_take_a_place(self) -> None:
        ring = make_ring(2)
        datas = powers_of_ten(2)
        for number in range(5):
            ring.give(0, *ring.message(0, number, datas[0]))
        assert ring.switch.ring_counters(7)["drop_bad_ina_header"] == 1, "message 0 is not complete"
        for number in range(4):
            ring.give(1, *ring.message(1, number, datas[1]))
        for rank in range(2):
            ring.take(rank)
        ahead = ring.message(0, 4, datas[0], psn=(ring.first_psns[0] + 12) & 0xFFFFFF)
        ring.give(0, *ahead)
        assert ring.switch.ring_counters(7)["drop_bad_ina_header"] == 2, "nobody acknowledged message 0"
        for rank in range(2):
            ring.answer(rank, ring.first_psns[rank] + 2)
        ring.give(0, *ahead)
        assert ring.switch.ring_counters(7)["drop_bad_ina_header"] == 2

    def test_unreliable_and_foreign_packets_on_a_ring_connection_pass_untouched(self) -> None:
        ring = make_ring(2)
        frames = [
            build_frame(opcode, payload, **ring.addresses(0), psn=ring.first_psns[0])
            for opcode, payload in [
                (Opcode.UC_SEND_ONLY, b"abcd"),
                (Opcode.UC_RDMA_WRITE_ONLY, b"abcd"),
                (Opcode.RDMA_READ_REQUEST, b""),
                (Opcode.ACKNOWLEDGE, b""),
                (Opcode.CNP, b""),
            ]
        ]
        ring.give(0, *frames)
        assert [packet.tobytes() for packet in drain(ring.switch, 1)] == [frame.tobytes() for frame in frames]


class TestMismatch:
    @pytest.mark.parametrize(
        ("kind", "description"),
        [
            ({"op": ReduceOp.MAX}, "float32 max, 752 bytes, only message"),
            ({"dtype": DataType.INT32}, "int32 sum, 752 bytes, only message"),
            ({"flags": InaFlag.END}, "float32 sum, 752 bytes, last message"),
            ({"flags": InaFlag.START}, "float32 sum, 752 bytes, first message"),
            ({"flags": InaFlag(0)}, "float32 sum, 752 bytes, middle message"),
        ],
    )
    def test_ranks_that_disagree_fail_the_ring_with_both_sides_named(
        self, kind: dict[str, object], description: str
    ) -> None:
        ring = make_ring(3)
        datas = powers_of_ten(3)
        ring.give(1, *ring.message(1, 0, datas[1]))
        ring.give(2, *ring.message(2, 0, datas[2], **kind))
        expected = Mismatch(7, 0, 1, "float32 sum, 752 bytes, only message", 2, description)
        assert ring.switch.notices() == [expected]
        assert ring.switch.notices() == [], "each once"
        assert ring.switch.waiting(10**15, 0) == [], "nobody waits for a failed ring"
        counters = ring.switch.ring_counters(7)
        assert counters["drop_mismatch"] == 1
        assert counters["drop_ring_failed"] == 2
        ring.give(0, *ring.message(0, 0, datas[0]))
        assert ring.switch.ring_counters(7)["drop_ring_failed"] == 5
        assert ring.switch.counters()["packets_out"] == 0, "nothing is summed, nothing passes unsummed"

    def test_lengths_that_differ_are_told_in_bytes(self) -> None:
        ring = make_ring(2, geometry=Geometry(message_window=2, message_packets=64, path_mtu=4096))
        ring.give(0, *ring.message(0, 0, np.zeros(16384, np.float32)))
        ring.give(1, *ring.message(1, 0, np.zeros(16383, np.float32)))
        (notice,) = ring.switch.notices()
        assert notice.description_a == "float32 sum, 65,536 bytes, only message"
        assert notice.description_b == "float32 sum, 65,532 bytes, only message"

    def test_a_failed_ring_can_be_registered_anew(self) -> None:
        ring = make_ring(2)
        datas = powers_of_ten(2)
        ring.give(0, *ring.message(0, 0, datas[0]))
        ring.give(1, *ring.message(1, 0, datas[1], op=ReduceOp.MIN))
        assert len(ring.switch.notices()) == 1
        ring.switch.unregister_ring(7)
        fresh = Ring(ring.switch, 2).register()
        assert fresh.exchange(0, datas) == [total_of(datas)] * 2
        assert fresh.switch.notices() == []
