"""Control messages: what is sent is what is read, and garbage is refused with an error that names the field."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreduce.wire import control

ENDPOINT = control.Endpoint(
    rank=1, ip="10.78.0.2", mac="02:4e:52:00:00:02", successor_qpn=17, predecessor_qpn=18, first_psn=0xFFFFFF,
    peer_qpns=((), (21, 22)), peer_psns=(5, 6), fifo_addresses=(0, 1 << 47), fifo_rkeys=(0, 99),
)  # fmt: skip
MESSAGES: list[Any] = [
    control.Attach(worker="rank 0", token="secret"),
    control.Join(group="default", world_size=4, endpoint=ENDPOINT, geometry=control.Geometry()),
    control.Joined(group="default", ring_id=3, endpoints=(ENDPOINT,)),
    control.Ready(ring_id=3),
    control.Leave(ring_id=3),
    control.Refused(group="default", reason="the ring needs 12 MiB, 8 MiB are free"),
    control.PeerLost(ring_id=3, rank=2, reason="killed by signal 9"),
    control.Mismatch(
        ring_id=3, message_id=7, rank_a=0, description_a="4 B float32 sum", rank_b=1, description_b="8 B int8 max"
    ),
    control.Waiting(ring_id=3, message_id=7, missing_ranks=(1, 3), waiting_s=0.5),
    control.StatisticsRequest(),
    control.Ok(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_wire(message: Any) -> None:
    assert control.decode(control.encode(message)) == message


def test_every_message_has_a_tag_of_its_own() -> None:
    kinds = get_args(control.Message)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"world_size": 0}, "world_size"),
        ({"world_size": control.RANKS_MAX + 1}, "world_size"),
        ({"group": ""}, "group"),
        ({"group": "x" * 201}, "group"),
        ({"endpoint": {"rank": -1}}, "rank"),
        ({"endpoint": {"first_psn": 1 << 24}}, "first_psn"),
        ({"endpoint": {"successor_qpn": 1 << 24}}, "successor_qpn"),
        ({"endpoint": {"ip": 7}}, "ip"),
        ({"geometry": {"path_mtu": 9000}}, "path_mtu"),
        ({"geometry": {"message_window": 0}}, "message_window"),
        ({"geometry": {"message_packets": 1025}}, "message_packets"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    good = json.loads(control.encode(MESSAGES[1]))
    for name, value in change.items():
        good[name] = {**good[name], **value} if isinstance(value, dict) else value
    with pytest.raises(msgspec.ValidationError, match=field):
        control.decode(json.dumps(good).encode())


@pytest.mark.parametrize("data", [b"", b"null", b"{}", b"[1]", b'{"type":"Nonsense"}', b"\xff\xfe", b'{"type":"Join"}'])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):  # of which ValidationError is one
        control.decode(data)


def test_a_message_that_is_too_long_is_refused_unread() -> None:
    with pytest.raises(msgspec.ValidationError, match="at most"):
        control.decode(b" " * (control.CONTROL_BYTES_MAX + 1))


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        control.decode(data)
    except msgspec.DecodeError as error:
        assert str(error)  # noqa: PT017 (most drawn bytes are refused, some are not)
