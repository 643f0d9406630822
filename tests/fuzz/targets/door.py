"""The switch's front door: datagrams and TCP bytes of strangers, workers and observers, at a live switch server.

Input: lines. The first byte of each chooses one of four connections (two over TCP, two of this machine) and whether the
rest goes out as it is or, over TCP, behind its length. Nothing gets in over TCP without the token, nothing that is said
ends the server, and no descriptor is left behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Iterator

from tests.runtime.bursts import filled_queue

from netreduce.runtime.cable import Outlet, connect, listen, new_address
from netreduce.runtime.clock import Clock
from netreduce.runtime.server import SwitchServer
from netreduce.runtime.stream import StreamCarrier
from netreduce.switch import Switch, SwitchLimits
from netreduce.wire.build import build_frame
from netreduce.wire.opcodes import Opcode

TOKEN = "token-of-16-byte"
LINES_MAX = 24
TURNS = 3
"""Rounds of the server's loop after each line: accept, read, answer."""
LIMITS = SwitchLimits(memory_bytes=1 << 20, egress_bytes=1 << 14, rings=2, connections=8, macs=16)
OUTSIDE_MAC = "02:00:00:00:00:01"


@contextlib.contextmanager
def serving() -> Iterator[tuple[SwitchServer, str, tuple[str, int]]]:
    """A server with an outside port behind which one host was heard; its local and its TCP address."""
    address = new_address()
    near, far = socket.socketpair()
    tcp = socket.create_server(("127.0.0.1", 0))
    tcp.setblocking(False)
    server = SwitchServer(Switch("switch", 3, limits=LIMITS), listen(address), Clock())
    try:
        server.outside.add("outside", StreamCarrier(near, lambda: 0))
        server.listen_tcp(tcp, TOKEN)
        outside = StreamCarrier(far, lambda: 0)
        Outlet(outside, filled_queue([build_frame(Opcode.SEND_ONLY, b"", source_mac=OUTSIDE_MAC)], 1 << 12)).send()
        server.turn(wait=False)
        yield server, address, tcp.getsockname()
        outside.close()
    finally:
        server.close()


class Client:
    """One connection and what went over it."""

    def __init__(self, connection: socket.socket, is_tcp: bool) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.is_tcp = is_tcp
        self.sent = self.received = b""

    def send(self, data: bytes, framed: bool) -> None:
        """Send a line, in one piece."""
        data = struct.pack("!I", len(data)) + data if framed and self.is_tcp else data
        self.sent += data
        if data:
            with contextlib.suppress(OSError):
                self.connection.send(data)

    def receive(self) -> None:
        """Take what the server has said."""
        with contextlib.suppress(OSError):
            while data := self.connection.recv(1 << 16):
                self.received += data


def check(data: bytes) -> None:
    """Raise AssertionError, or anything else, when a stranger gets in or harms the server."""
    logging.getLogger("netreduce").setLevel(logging.CRITICAL)
    descriptors = len(os.listdir("/proc/self/fd"))
    clients: dict[int, Client] = {}
    with serving() as (server, address, tcp):
        for line in data.split(b"\n")[:LINES_MAX]:
            choice = line[0] if line else 0
            number, framed = choice % 4, choice // 4 % 2 == 0
            if number not in clients:
                connection = connect(address) if number >= 2 else socket.create_connection(tcp)
                clients[number] = Client(connection, is_tcp=number < 2)
            clients[number].send(line[1:], framed)
            for _ in range(TURNS):
                server.turn(wait=False)
            for client in clients.values():
                client.receive()
        for client in clients.values():
            client.connection.close()
        for _ in range(TURNS):
            server.turn(wait=False)
    for client in clients.values():
        if client.is_tcp and TOKEN.encode() not in client.sent.replace(b"\\u", b""):
            assert client.received.count(b'"type":') == client.received.count(b'"type":"Refused"')
    assert len(os.listdir("/proc/self/fd")) == descriptors, "a descriptor is left behind"
