import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreduce.runtime.control_channel import BadMessageError
from netreduce.runtime.control_desk import ControlDesk
from netreduce.switch import Switch, SwitchLimits
from netreduce.wire import control
from netreduce.wire.control import COUNT_MAX

ADDRESSES = [(f"10.78.0.{port + 2}", f"02:4e:52:00:00:{port + 2:02x}") for port in range(3)]


@pytest.fixture(scope="module")
def switch():
    switch = Switch("switch", len(ADDRESSES))
    for port, (ip, mac) in enumerate(ADDRESSES):
        switch.attach(port, mac, ip)
    return switch


qpns = st.integers(0, (1 << 24) - 1)
numbers = st.tuples(*[st.integers(0, (1 << 32) - 1)] * 2)
addresses = st.sampled_from(ADDRESSES)
endpoints = addresses.flatmap(
    lambda pair: st.builds(
        control.Endpoint,
        rank=st.integers(0, 2),
        ip=st.just(pair[0]),
        mac=st.just(pair[1]),
        successor_qpn=qpns,
        predecessor_qpn=qpns,
        first_psn=qpns,
        fifo_addresses=numbers | st.just(()),
        fifo_rkeys=numbers | st.just(()),
    )
)
geometries = st.builds(
    control.Geometry, st.sampled_from([1, 4, 64]), st.sampled_from([1, 64, 1024]), st.integers(256, 4096)
)
ring_ids = st.integers(0, 5)
requests = st.one_of(
    st.builds(control.Join, st.sampled_from(["a", "b"]), st.integers(1, 3), endpoints, geometries),
    st.builds(control.Ready, ring_ids),
    st.builds(control.Leave, ring_ids),
    st.builds(control.Report, st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, COUNT_MAX))),
    st.just(control.StatisticsRequest()),
    st.builds(
        control.Mismatch, ring_ids, st.just(-1), st.just(0), st.text(max_size=5), st.just(1), st.text(max_size=5)
    ),
    st.just(control.Ok()),
    st.just(None),  # the worker is lost
)


@given(script=st.lists(st.tuples(st.integers(0, 2), requests), max_size=30))
def test_no_order_of_requests_and_losses_harms_the_switch(switch, script):
    desk = ControlDesk(switch)
    for now_ps, (port, request) in enumerate(script):
        try:
            if request is None:
                outgoing = desk.lost(port, "lost")
            else:
                outgoing = desk.answer(port, ADDRESSES[port], request, now_ps)
        except BadMessageError:
            continue
        for target, message in outgoing + desk.tick(now_ps):
            assert 0 <= target < len(ADDRESSES)
            assert control.decode(control.encode(message)) == message
    for port in range(3):
        desk.lost(port, "the end")
    assert desk.statistics().rings == {}


def test_reports_saturate_instead_of_overflowing(switch):
    desk = ControlDesk(switch)
    for _ in range(2):
        desk.answer(0, ADDRESSES[0], control.Report({"sent_pkts": COUNT_MAX}), 0)
    assert desk.statistics().workers == {"sent_pkts": COUNT_MAX}


def join_alone(desk, port, group, geometry):
    """A group of one, by the worker at `port`; the answer."""
    ip, mac = ADDRESSES[port]
    number = sum(map(ord, group))
    endpoint = control.Endpoint(0, ip, mac, 2 * number, 2 * number + 1, 0)
    ((_, answer),) = desk.answer(port, ADDRESSES[port], control.Join(group, 1, endpoint, geometry), 0)
    return answer


def test_a_share_is_that_of_the_workers_that_are_there_however_many_ports_there_are():
    limits = SwitchLimits(memory_bytes=3 * 4 * 2 * 8 * (192 + 256), rings=32)
    switch = Switch("switch", 12, limits=limits)
    for port, (ip, mac) in enumerate(ADDRESSES):
        switch.attach(port, mac, ip)
    desk, geometry = ControlDesk(switch), control.Geometry(1, 8, 256)
    answers = [join_alone(desk, 0, f"group {number}", geometry) for number in range(4)]
    assert all(isinstance(answer, control.Joined) for answer in answers)


def test_a_worker_that_takes_all_the_memory_it_can_leaves_the_others_their_share():
    limits = SwitchLimits(memory_bytes=3 * 4 * 2 * 8 * (192 + 256), rings=32)
    switch = Switch("switch", 3, limits=limits)
    for port, (ip, mac) in enumerate(ADDRESSES):
        switch.attach(port, mac, ip)
    desk, geometry = ControlDesk(switch), control.Geometry(1, 8, 256)  # a share holds four rings of one rank
    answers = [join_alone(desk, 0, f"greedy {number}", geometry) for number in range(6)]
    assert [isinstance(answer, control.Joined) for answer in answers] == [True] * 4 + [False] * 2
    assert "a worker's share is 0.0 MB: lower message_window (1)" in answers[4].reason
    for port in (1, 2):
        for number in range(4):
            assert isinstance(join_alone(desk, port, f"modest {port} {number}", geometry), control.Joined)
    desk.lost(0, "gone")
    assert isinstance(join_alone(desk, 0, "again", geometry), control.Joined)
