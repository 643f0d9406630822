"""A switch's turns at its cables in one compiled call that sleeps between them: what it does itself, what it leaves."""

import socket
import threading
import time

import numpy as np
import pytest
from tests.patience import eventually
from tests.runtime.bursts import filled_queue, frames_of

from netreduce.runtime.cable import BadBurstError, Cable, CableClosedError, Outlet, make_burst_buffer
from netreduce.runtime.clock import Clock
from netreduce.runtime.lines import Lines
from netreduce.runtime.poller import Poller
from netreduce.switch import Switch
from netreduce.units import PS_PER_S

MACS = ["02:00:00:00:00:01", "02:00:00:00:00:02"]


class Bench:
    """Two cables at a switch's lines; `lost` says why some were unplugged."""

    def __init__(self):
        self.clock, self.poller, self.lost = Clock(), Poller(), {}
        switch = Switch("switch", 2)
        self.lines = Lines(switch, self.poller, self.clock, lambda port, reason: self.lost.setdefault(port, reason))
        self.cables = []
        for port, mac in enumerate(MACS):
            far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            switch.attach(port, mac, f"10.0.0.{port + 1}")
            self.lines.plug(port, Cable.offer(far), f"worker {port}")
            self.cables.append(Cable.take(near, 5.0))

    def serve(self, seconds):
        """Take turns; how long it took, in seconds."""
        start = time.monotonic()
        self.lines.serve(self.clock.now_ps() + int(seconds * PS_PER_S))
        self.poller.poll(0)
        return time.monotonic() - start

    def send(self, payload=b"payload"):
        """From the first cable to the second."""
        macs = [bytes.fromhex(mac.replace(":", "")) for mac in MACS]
        frame = np.frombuffer(macs[1] + macs[0] + b"\x88\xb5" + payload.ljust(46, b"\0"), np.uint8)
        Outlet(self.cables[0], filled_queue([frame])).send()
        return frame.tobytes()

    def received(self):
        burst = self.cables[1].receive(make_burst_buffer())
        return [] if burst is None else frames_of(burst)

    def close(self):
        self.lines.close()
        for cable in self.cables:
            cable.close()
        self.poller.close()


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.close()


def test_what_lies_there_is_forwarded_and_a_time_that_is_over_ends_it(bench):
    assert bench.lines.are_plain
    frame = bench.send()
    bench.lines.serve(0)
    assert bench.received() == [frame]
    assert not bench.lines.serve(0)


def test_without_anything_to_do_it_sleeps_until_the_time_given(bench):
    started = time.process_time()
    assert bench.serve(0.3) >= 0.3
    assert time.process_time() - started < 0.2


def test_what_comes_while_it_sleeps_is_forwarded_and_the_receiver_woken(bench):
    assert bench.cables[1].rest()
    serving = threading.Thread(target=bench.serve, args=(2.0,))
    serving.start()
    time.sleep(0.1)
    frame = bench.send()
    assert eventually(lambda: bench.received() == [frame])
    bench.cables[1].wake()  # takes a bell, and does not find the cable closed
    assert serving.is_alive()
    bench.cables[0].close()
    serving.join(10)
    assert not serving.is_alive()


def test_any_other_descriptor_ends_it_and_is_told_of_by_the_poller(bench):
    near, far = socket.socketpair()
    with near, far:
        heard = []
        bench.poller.watch(near.fileno(), lambda _mask: heard.append(near.recv(1)))
        far.send(b"x")
        assert bench.serve(10) < 5
        assert heard == [b"x"]
        bench.poller.unwatch(near.fileno())


def test_a_worker_that_hangs_up_is_lost_at_once_and_the_other_served_on(bench):
    bench.cables[1].close()
    bench.serve(10)
    assert bench.lost == {1: "cable closed by the other end"}
    assert bench.serve(0.05) >= 0.05


def test_a_burst_that_makes_no_sense_costs_its_sender_the_cable(bench):
    bench.cables[0].send_burst(np.ones(64, np.uint8))
    bench.serve(10)
    assert bench.lost == {0: str(BadBurstError.of(64))}
    with pytest.raises(CableClosedError):
        bench.cables[0].wake()


def test_a_full_cable_keeps_its_frames_until_its_bell_tells_of_room(bench):
    frames = []
    while bench.lines.counters(1)["queue_bytes"] == 0:
        frames.append(bench.send(len(frames).to_bytes(4, "big") + bytes(8000)))
        bench.lines.serve(0)
    for _ in range(3):
        bench.serve(0.01)  # without a bell it does not even try
    got = []
    while len(got) < len(frames):
        got += bench.received()
        bench.serve(0.001)
    assert got == frames


def test_a_reader_that_takes_no_bells_is_rung_no_more_and_nothing_waits_for_it(bench):
    for _ in range(3000):
        assert bench.cables[1].rest() or bench.received()
        bench.send()
        bench.lines.serve(0)
        while bench.received():
            pass
    assert not bench.lost


def test_lines_without_cables_are_not_served_so(bench):
    lines = Lines(Switch("other", 1), bench.poller, bench.clock, lambda *_: None)
    assert not lines.are_plain
    lines.close()
