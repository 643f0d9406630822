"""Waiting for a peer: retransmission timers, retries, RNR NAKs, all in virtual time."""

import pytest
from tests.nic.harness import answer_to, connect, fill, frames_of, lose, make_wire, parsed

from netreduce.nic import verbs as v
from netreduce.units import PS_PER_US
from netreduce.wire.aeth import RNR_TIMER_PS
from netreduce.wire.build import build_burst


@pytest.mark.parametrize("timeout", [14, 15, 16, 17, 18])
@pytest.mark.parametrize("retry_cnt", [0, 1, 7])
def test_a_silent_peer_is_given_up_after_retry_cnt_waits_of_the_4_us_rule(timeout: int, retry_cnt: int) -> None:
    wire = make_wire()
    a, _ = connect(wire, timeout=timeout, retry_cnt=retry_cnt)
    wire.hooks[0] = lambda frame: []
    a.send(1, 0, 100)
    a.send(2, 0, 100)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_RETRY_EXC_ERR"), (2, "IBV_WC_WR_FLUSH_ERR")]
    assert a.qp.qp_state is v.IBV_QPS_ERR
    waits = retry_cnt + 1
    expected_ps = waits * 4_096_000 * 2**timeout
    assert expected_ps <= wire.now_ps <= expected_ps + waits * 2 * wire.delay_ps
    assert len(wire.sent(0)) == 2 * waits
    assert a.nic.counters()["retry_exceeded_err"] == 1


def test_timeout_zero_waits_for_ever() -> None:
    wire = make_wire()
    a, _ = connect(wire, timeout=0)
    wire.hooks[0] = lambda frame: []
    a.send(1, 0, 100)
    wire.run()  # ends: nothing is left to happen
    assert a.completions() == []
    assert len(wire.sent(0)) == 1


def test_progress_gives_all_retries_back() -> None:
    wire = make_wire()
    a, b = connect(wire, retry_cnt=1)
    for message in range(4):
        wire.hooks[0] = lose(0)
        fill(a, seed=message)
        b.receive(message, 0, 100)
        a.send(message, 0, 100)
        wire.run()
        assert a.statuses() == [(message, "IBV_WC_SUCCESS")]


def test_copies_of_a_nak_cost_no_more_retries_than_one() -> None:
    wire = make_wire()
    a, b = connect(wire, retry_cnt=1)
    wire.hooks[0] = lose(0)
    wire.hooks[1] = lambda frame: [frame] * 10
    fill(a, seed=3)
    b.receive(1, 0, 600)
    a.send(1, 0, 600)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS")]
    assert [packet.psn for packet in wire.sent(0)] == [0, 1, 2, 0, 1, 2]
    assert a.nic.counters()["packet_seq_err"] == 1


@pytest.mark.parametrize("rnr_retry", [0, 3])
def test_a_receiver_without_work_requests_is_asked_rnr_retry_times(rnr_retry: int) -> None:
    wire = make_wire()
    a, b = connect(wire, rnr_retry=rnr_retry)
    a.send(1, 0, 600)
    a.send(2, 0, 600)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_RNR_RETRY_EXC_ERR"), (2, "IBV_WC_WR_FLUSH_ERR")]
    assert b.nic.counters()["out_of_buffer"] == rnr_retry + 1
    assert b.nic.counters()["naks_sent"] == rnr_retry + 1, "what follows in the same flight draws no NAK of its own"
    waited_ps = rnr_retry * int(RNR_TIMER_PS[12])
    assert waited_ps <= wire.now_ps <= waited_ps + 10 * wire.delay_ps * (rnr_retry + 1)


def test_rnr_retry_7_waits_without_end_and_without_spinning() -> None:
    wire = make_wire()
    a, b = connect(wire, rnr_retry=7)
    a.send(1, 0, 600)
    wire.run(until_ps=100 * int(RNR_TIMER_PS[12]))
    assert a.completions() == []
    assert 90 <= b.nic.counters()["out_of_buffer"] <= 101
    b.receive(5, 0, 600)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS")]
    assert b.statuses() == [(5, "IBV_WC_SUCCESS")]


@pytest.mark.parametrize(("timer", "wait_us"), [(0, 655_360), (1, 10), (12, 640), (14, 1_280), (31, 491_520)])
def test_the_rnr_timer_is_the_receivers_choice(timer: int, wait_us: int) -> None:
    wire = make_wire()
    a, _ = connect(wire, rnr_retry=1, min_rnr_timer=timer)
    a.send(1, 0, 10)
    wire.run()
    assert wait_us * PS_PER_US <= wire.now_ps <= wait_us * PS_PER_US + 8 * wire.delay_ps


def test_a_write_with_immediate_waits_for_a_receive_at_its_last_packet() -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=2)
    a.write(1, 0, 600, b, 0, imm=4)
    wire.run(until_ps=100 * PS_PER_US)
    assert b.nic.counters()["out_of_buffer"] == 1
    b.qp.post_recv(v.RecvWR(9, 0, None))
    wire.run()
    assert b.statuses() == [(9, "IBV_WC_SUCCESS")]
    assert [packet.psn for packet in wire.sent(0)] == [0, 1, 2, 2]


def test_rnr_naks_during_the_wait_cost_nothing_and_each_wait_gives_the_timeouts_retries_back() -> None:
    wire = make_wire()
    a, _ = connect(wire, rnr_retry=1, retry_cnt=1)
    a.send(0, 0, 256)
    a.nic.advance(0)
    a.nic.advance(a.nic.next_timer_ps())
    frames_of(a.nic.egress(0))
    assert a.nic.tables.qp[1].retries_left == 1, "not sent yet, so its time has not run"
    a.nic.advance(a.nic.next_timer_ps())
    assert a.nic.tables.qp[1].retries_left == 0
    now = a.nic.next_timer_ps() - 1
    a.nic.receive(0, build_burst([answer_to(a, psn=0, syndrome=0x21)] * 5), now)
    assert a.completions() == []
    assert a.nic.counters()["rnr_nak_retry_err"] == 1
    assert a.nic.tables.qp[1].retries_left == 1


def test_an_ack_ends_an_rnr_wait_at_once() -> None:
    wire = make_wire()
    a, _ = connect(wire)
    a.send(0, 0, 256)
    a.send(1, 0, 256)
    a.nic.advance(0)
    frames_of(a.nic.egress(0))
    a.nic.receive(0, build_burst([answer_to(a, psn=0, syndrome=0x20)]), 0)
    a.nic.advance(0)
    assert a.nic.next_timer_ps() == 655_360 * PS_PER_US
    assert frames_of(a.nic.egress(0)) == []
    a.nic.receive(0, build_burst([answer_to(a, psn=0)]), 1000)
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")]
    a.nic.advance(1000)
    assert [parsed(frame).psn for frame in frames_of(a.nic.egress(0))] == [1]


def test_a_cable_that_takes_nothing_costs_no_retries() -> None:
    wire = make_wire()
    a, b = connect(wire, timeout=14, retry_cnt=0)
    fill(a, seed=1)
    b.receive(0, 0, 5120)
    a.send(0, 0, 5120)
    for _ in range(5):
        a.nic.advance(wire.now_ps)
        wire.now_ps = a.nic.next_timer_ps()
    assert wire.now_ps == 5 * 4_096_000 * 2**14
    assert a.completions() == []
    assert a.nic.egress(0).state[0].frames == 20
    wire.run()
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")]
    assert a.nic.counters()["local_ack_timeout_err"] == 0
