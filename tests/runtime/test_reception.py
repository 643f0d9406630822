"""The front door over TCP: nobody without the token, nothing without bounds. The server's loop is turned by hand."""

from __future__ import annotations

import hmac
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.fuzz.targets.door import OUTSIDE_MAC, TOKEN, Client, serving

from netreduce.runtime.server import CONNECTIONS_PER_PORT_MAX, SwitchServer
from netreduce.wire import control

PRESENT = control.Present("worker", OUTSIDE_MAC, "10.9.0.1", TOKEN)
OBSERVER = control.Hello(-1, "observer", 1, TOKEN)
Ask = Callable[..., list[control.Message]]


@pytest.fixture
def door() -> Iterator[tuple[SwitchServer, tuple[str, int]]]:
    with serving() as (server, _, address):
        yield server, address


@pytest.fixture
def ask(door: tuple[SwitchServer, tuple[str, int]]) -> Iterator[Ask]:
    """Say something over a fresh TCP connection; the answers."""
    server, address = door
    clients = []

    def ask(*said: control.Message | bytes, framed: bool = True) -> list[control.Message]:
        client = Client(socket.create_connection(address), is_tcp=True)
        clients.append(client)
        for message in said:
            client.send(message if isinstance(message, bytes) else control.encode(message), framed)
            for _ in range(3):
                server.turn(wait=False)
        client.receive()
        return messages_in(client.received)

    yield ask
    for client in clients:
        client.connection.close()


def messages_in(data: bytes) -> list[control.Message]:
    found = []
    while data:
        (length,) = struct.unpack_from("!I", data)
        found.append(control.decode(data[4 : 4 + length]))
        data = data[4 + length :]
    return found


def test_who_knows_the_token_gets_in(ask: Ask) -> None:
    (attached,) = ask(PRESENT)
    assert isinstance(attached, control.Attached)
    assert attached.ip == "10.9.0.1"
    answers = ask(OBSERVER, control.RingsRequest())
    assert answers == [control.Ok(), control.Rings(())]


@pytest.mark.parametrize("greeting", [PRESENT, OBSERVER], ids=["worker", "observer"])
@pytest.mark.parametrize(
    ("token", "reason"),
    [("", "no token: set NETREDUCE_TOKEN"), (TOKEN[:-1], "wrong token: set NETREDUCE_TOKEN"), ("é", "wrong token")],
)
def test_who_does_not_is_told_how_to_set_one(ask: Ask, greeting: Any, token: str, reason: str) -> None:
    stranger = type(greeting)(
        **{name: getattr(greeting, name) for name in greeting.__struct_fields__} | {"token": token}
    )
    (refusal,) = ask(stranger, control.RingsRequest())
    assert isinstance(refusal, control.Refused)
    assert reason in refusal.reason


def test_tokens_are_compared_in_constant_time(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, original = [], hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        seen.append((one, other))
        return original(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    ask(control.Hello(-1, "observer", 1, "guess"))
    assert seen == [(b"guess", TOKEN.encode())]


@pytest.mark.parametrize(
    "greeting",
    [control.Attach("cable", TOKEN), control.Hello(0, "cable", 1, TOKEN), control.StatisticsRequest(), control.Ok()],
)
def test_what_belongs_to_a_cable_or_comes_before_a_greeting_is_refused(ask: Ask, greeting: control.Message) -> None:
    (refusal,) = ask(greeting)
    assert isinstance(refusal, control.Refused)


def test_a_message_that_claims_to_be_longer_than_any_is_refused_before_it_comes(ask: Ask) -> None:
    (refusal,) = ask(struct.pack("!I", control.CONTROL_BYTES_MAX + 1), framed=False)
    assert isinstance(refusal, control.Refused)
    assert f"at most {control.CONTROL_BYTES_MAX}" in refusal.reason


@pytest.mark.parametrize(
    ("mac", "ip", "reason"),
    [
        ("zz", "10.9.0.1", "MAC address 'zz'"),
        ("", "10.9.0.1", "malformed"),
        ("00:00:00:00:00:00", "10.9.0.1", "no host can have it"),
        ("ff:ff:ff:ff:ff:ff", "10.9.0.1", "no host can have it"),
        (OUTSIDE_MAC, "nowhere", "IP address 'nowhere'"),
        ("02:00:00:00:00:77", "10.9.0.1", "no frame from 02:00:00:00:00:77 has reached the switch"),
    ],
)
def test_addresses_that_are_none_are_refused_and_the_switch_goes_on(ask: Ask, mac: str, ip: str, reason: str) -> None:
    """Found by fuzzing: a worker or an observer could end the switch with one wrong address."""
    (refusal,) = ask(control.Present("worker", mac, ip, TOKEN))
    assert isinstance(refusal, control.Refused)
    assert reason in refusal.reason
    endpoint = control.Endpoint(0, ip, mac, 1, 2, 3)
    answers = ask(OBSERVER, control.Register((endpoint,), control.Geometry()), control.RingsRequest())
    assert isinstance(answers[1], control.Refused)
    assert answers[2] == control.Rings(())


def test_no_more_connections_are_open_than_there_are_places(door: tuple[SwitchServer, tuple[str, int]]) -> None:
    server, address = door
    clients = [socket.create_connection(address) for _ in range(CONNECTIONS_PER_PORT_MAX * 3 + 4)]
    for _ in range(2 * len(clients)):
        server.turn(wait=False)
    ends = []
    for client in clients:
        client.setblocking(False)
        try:
            ends.append(client.recv(1) == b"")
        except BlockingIOError:
            ends.append(False)
        except ConnectionResetError:
            ends.append(True)
        client.close()
    assert 0 < sum(ends) < len(ends)
    assert ends == sorted(ends), "who came first stays"
