import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreduce.runtime.cable import CableClosedError
from netreduce.runtime.control_channel import OUTBOX_MESSAGES_MAX, BadMessageError, ControlChannel
from netreduce.wire import control


@pytest.fixture
def ends():
    near, far = (ControlChannel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield near, far
    near.close()
    far.close()


def test_messages_arrive_as_they_were_sent(ends):
    near, far = ends
    messages = [control.Ok(), control.PeerLost(7, 3, "gone"), control.Waiting(1, 2, (0, 3), 2.5)]
    for message in messages:
        near.send(message)
    assert [far.receive() for _ in messages] == messages
    assert far.receive() is None


def test_waiting_for_a_message_ends_in_time(ends):
    _, far = ends
    assert far.receive_within(0.01) is None


@given(data=st.binary(min_size=1, max_size=300))
def test_no_datagram_does_more_than_raise_a_bad_message(data):
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = ControlChannel(far)
    with near, far:
        near.send(data)
        with pytest.raises(BadMessageError):
            channel.receive()


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"type":"Ready","ring_id":"one"}', b'{"type":"Leave"}', b"\xff\xfe", b"1" * 4096],
    ids=["deep", "wrong type", "missing field", "no text", "long number"],
)
def test_nonsense_is_a_bad_message(ends, data):
    near, far = ends
    near.connection.send(data)
    with pytest.raises(BadMessageError, match="malformed control message"):
        far.receive()


def test_a_peer_that_does_not_read_is_given_up_at_the_bound_of_the_outbox(ends):
    near, far = ends
    message = control.Refused("group", "x" * 10_000)
    while near.flush():
        near.send(message)
    for _ in range(OUTBOX_MESSAGES_MAX - 1):
        near.send(message)
    with pytest.raises(CableClosedError, match="unread"):
        near.send(message)
    assert far.receive() == message


def test_a_closed_peer_is_noticed(ends):
    near, far = ends
    near.close()
    with pytest.raises(CableClosedError):
        far.receive()
    with pytest.raises(CableClosedError):
        far.send(control.Ok())
