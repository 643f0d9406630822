"""Waiting: what the switch tells a sender whose timer fired, and what it tells the control plane."""

from __future__ import annotations

from tests.switch.switch_harness import dissect, drain, make_ring, powers_of_ten, total_of

from netreduce.units import PS_PER_MS
from netreduce.wire.aeth import RNR_TIMER_PS
from netreduce.wire.opcodes import Opcode

NAK = 0x60


class TestStragglers:
    def test_a_retransmission_of_a_held_packet_is_told_to_wait_at_the_first_unacknowledged_psn(self) -> None:
        ring = make_ring(3, header={"traffic_class": 0x83})
        datas = powers_of_ten(3)
        ring.exchange(0, datas)
        frames = ring.message(0, 1, datas[0])
        ring.give(0, *frames)
        assert ring.take(0) == [], "never on a first transmission"
        ring.give(0, *frames)
        (nak,) = ring.take(0)
        assert nak.icrc_good
        assert nak.opcode == Opcode.ACKNOWLEDGE
        assert nak.fields.syndrome == 0x20 | 14
        assert nak.psn == (ring.first_psns[0] + 3) & 0xFFFFFF
        assert nak.fields.msn == 5, "as the successor counted last"
        assert nak.fields.destination_qpn == ring.endpoints[0].successor_qpn
        sent = dissect(frames[0]).fields
        assert nak.fields.source_ip_low == sent.destination_ip_low
        assert nak.fields.destination_ip_low == sent.source_ip_low
        assert nak.frame[:6].tobytes() == frames[0][6:12].tobytes()
        assert nak.frame[6:12].tobytes() == frames[0][:6].tobytes()
        assert nak.fields.ecn == 0
        counters = ring.switch.ring_counters(7)
        assert counters["rnr_sent"] == 1
        assert counters["drop_held"] == 3

    def test_each_go_back_is_told_once(self) -> None:
        ring = make_ring(2)
        frames = ring.message(0, 0, powers_of_ten(2)[0])
        for _ in range(4):
            ring.give(0, *frames)
        assert len(ring.take(0)) == 3

    def test_waits_double_from_1_28_to_163_84_ms_until_there_is_progress(self) -> None:
        ring = make_ring(2)
        datas = powers_of_ten(2)
        frames = [ring.message(rank, 0, datas[rank]) for rank in range(2)]
        for _ in range(11):
            ring.give(0, *frames[0])
        waits_ms = [RNR_TIMER_PS[packet.fields.syndrome & 0x1F] / PS_PER_MS for packet in ring.take(0)]
        assert waits_ms == [1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 163.84, 163.84]
        ring.give(1, *frames[1][:2])
        ring.answer(0, ring.first_psns[0])
        drain(ring.switch, 0)
        ring.give(0, frames[0][2])
        (nak,) = ring.take(0)
        assert RNR_TIMER_PS[nak.fields.syndrome & 0x1F] / PS_PER_MS == 1.28

    def test_a_go_back_that_a_nak_asked_for_is_not_told_to_wait(self) -> None:
        ring = make_ring(2)
        datas = powers_of_ten(2)
        frames = [ring.message(rank, 0, datas[rank]) for rank in range(2)]
        ring.give(0, *frames[0])
        ring.give(1, frames[1][0], frames[1][2])  # the middle one is lost
        ring.take(0)
        ring.answer(0, ring.first_psns[0] + 1, NAK)
        drain(ring.switch, 0)
        ring.give(0, *frames[0][1:])
        assert ring.take(0) == []
        ring.give(0, *frames[0][1:])  # but this time its timer fired
        (nak,) = [packet for packet in ring.take(0) if packet.opcode == Opcode.ACKNOWLEDGE]
        assert nak.psn == (ring.first_psns[0] + 1) & 0xFFFFFF

    def test_answers_that_are_forged_or_broken_move_nothing(self) -> None:
        ring = make_ring(3)
        datas = powers_of_ten(3)
        frames = ring.message(0, 0, datas[0])
        ring.give(0, *frames)
        ring.answer(0, ring.first_psns[0] + 100)  # beyond what was sent
        ring.answer(0, ring.first_psns[0] - 5)  # long past
        ring.answer(0, ring.first_psns[0] + 1, 0x40)  # a reserved kind
        drain(ring.switch, 0)
        ring.give(0, *frames)
        (nak,) = ring.take(0)
        assert nak.psn == ring.first_psns[0]

    def test_ipv6_rings_are_answered_in_ipv6(self) -> None:
        ring = make_ring(2, ip_version=6)
        datas = powers_of_ten(2)
        frames = ring.message(0, 0, datas[0])
        ring.give(0, *frames)
        ring.give(0, *frames)
        (nak,) = ring.take(0)
        assert nak.icrc_good
        assert nak.fields.ip_version == 6
        assert nak.fields.source_ip_low == dissect(frames[0]).fields.destination_ip_low
        ring.give(1, *ring.message(1, 0, datas[1]))
        assert ring.result(0) == total_of(datas)

    def test_waiting_names_the_missing_ranks_and_since_when(self) -> None:
        ring = make_ring(4)
        datas = powers_of_ten(4)
        ring.exchange(0, datas)
        for rank in (0, 2):
            ring.give(rank, *ring.message(rank, 1, datas[rank]), now_ps=10**12)
        ring.give(1, ring.message(1, 1, datas[1])[0], now_ps=2 * 10**12)
        (waiting,) = ring.switch.waiting(3 * 10**12, 10**12)
        assert (waiting.ring_id, waiting.message_id, waiting.missing_ranks) == (7, 1, (1, 3))
        assert waiting.waiting_s == 2.0
        assert ring.switch.waiting(3 * 10**12, 2 * 10**12) == []
