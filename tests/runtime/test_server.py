import contextlib
import os
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.patience import bound_s, descriptors, eventually
from tests.runtime.bursts import filled_queue, frames_of
from tests.runtime.fabrics import served

from netreduce.errors import SwitchLostError
from netreduce.runtime.cable import CableClosedError, Outlet, connect, make_burst_buffer
from netreduce.runtime.control_channel import ControlChannel
from netreduce.runtime.observer import observe
from netreduce.runtime.plug import plug_in
from netreduce.wire import control


@pytest.fixture(scope="module")
def address():
    with served() as address:
        yield address


@pytest.fixture
def plugs(address):
    plugs = [plug_in(address, f"worker {number}") for number in range(3)]
    yield plugs
    for plug in plugs:
        plug.cable.close()
        plug.channel.close()
    assert eventually(lambda: not observe(address).ports)


def mac(plug):
    return bytes.fromhex(plug.attached.mac.replace(":", ""))


def frame_from(source, destination, payload=b"payload"):
    frame = destination + source + struct.pack("!H", 0x88B5) + payload.ljust(46, b"\0")
    return np.frombuffer(frame, np.uint8).copy()


def receive(cable, timeout_s=5.0):
    """Frames of the next burst; none when nothing comes."""
    buffer, deadline = make_burst_buffer(), time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (burst := cable.receive(buffer)) is not None:
            return frames_of(burst)
        cable.wake()
        time.sleep(0.001)
    return []


def test_frames_go_where_their_destination_is_plugged_in_and_nowhere_else(plugs):
    one, two, three = plugs
    frames = [frame_from(mac(one), mac(two), bytes([n])) for n in range(10)]
    Outlet(one.cable, filled_queue(frames)).send()
    arrived = []
    while len(arrived) < len(frames):
        arrived += receive(two.cable)
    assert arrived == [frame.tobytes() for frame in frames]
    assert receive(three.cable, 0.05) == []


def test_a_broadcast_reaches_all_others(plugs):
    one, two, three = plugs
    frame = frame_from(mac(one), b"\xff" * 6)
    Outlet(one.cable, filled_queue([frame])).send()
    assert receive(two.cable) == receive(three.cable) == [frame.tobytes()]
    assert receive(one.cable, 0.05) == []


def test_every_worker_gets_addresses_of_its_own(plugs):
    assert len({plug.attached.ip for plug in plugs}) == len({plug.attached.mac for plug in plugs}) == 3
    assert sorted(plug.attached.port for plug in plugs) == [0, 1, 2]


def assert_forwards(source, destination):
    frame = frame_from(mac(source), mac(destination))
    Outlet(source.cable, filled_queue([frame])).send()
    assert receive(destination.cable) == [frame.tobytes()]


def test_a_malformed_burst_costs_its_sender_the_cable_and_nobody_else(plugs):
    one, two, three = plugs
    one.cable.send_burst(np.ones(64, np.uint8))
    with pytest.raises(CableClosedError):
        receive(one.cable)
    assert_forwards(two, three)


@pytest.mark.parametrize("greeting", [b"\xff" * 1000, b"{}", b'{"type":"Leave","ring_id":1}', b'{"type":"Hello"}'])
def test_a_connection_that_begins_with_nonsense_is_closed_and_nobody_else(address, plugs, greeting):
    with connect(address) as stranger:
        stranger.send(greeting)
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    assert_forwards(plugs[0], plugs[1])


def test_one_process_cannot_speak_for_the_port_of_another(address, plugs):
    code = f"""
import os
from netreduce.runtime.cable import CableClosedError, connect
from netreduce.runtime.control_channel import ControlChannel
from netreduce.wire import control
cable = ControlChannel(connect({address!r}))
cable.send(control.Attach("mine"))
assert cable.receive_within(5)
channel = ControlChannel(connect({address!r}))
channel.send(control.Hello({plugs[0].attached.port}, "thief", os.getpid()))
try:
    channel.receive_within(5)
except CableClosedError:
    print("refused")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "refused\n", result.stderr


@pytest.mark.parametrize("request_", [control.Ok(), control.Joined("g", 1, ()), control.PeerLost(1, 0, "x")])
def test_what_only_the_switch_may_say_costs_a_worker_its_place(plugs, request_):
    plugs[0].channel.send(request_)
    with pytest.raises(CableClosedError):
        plugs[0].channel.receive_within(5)
    assert_forwards(plugs[1], plugs[2])


def endpoint(plug, rank, **fields):
    base = {"ip": plug.attached.ip, "mac": plug.attached.mac}
    return control.Endpoint(rank=rank, successor_qpn=32 + rank, predecessor_qpn=64 + rank, first_psn=0, **base | fields)


def join(plug, rank, world_size, group="world", **fields):
    plug.channel.send(control.Join(group, world_size, endpoint(plug, rank, **fields), control.Geometry()))


def answer_of(plug, kind):
    """The next message of a kind."""
    while True:
        message = plug.channel.receive_within(5)
        assert message is not None, f"no {kind.__name__} came"
        if isinstance(message, kind):
            return message


def test_a_group_meets_starts_leaves_and_is_gone(address, plugs):
    for rank, plug in enumerate(plugs):
        join(plug, rank, 3)
    joined = [answer_of(plug, control.Joined) for plug in plugs]
    assert joined[0] == joined[1] == joined[2]
    assert [e.ip for e in joined[0].endpoints] == [plug.attached.ip for plug in plugs]
    for plug in plugs:
        plug.channel.send(control.Ready(joined[0].ring_id))
    assert {answer_of(plug, control.Go).ring_id for plug in plugs} == {joined[0].ring_id}
    assert list(observe(address).rings) == [str(joined[0].ring_id)]
    for plug in plugs:
        plug.channel.send(control.Leave(joined[0].ring_id))
    assert [answer_of(plug, control.Closed).ring_id for plug in plugs] == [joined[0].ring_id] * 3
    assert observe(address).rings == {}


def test_a_worker_may_not_join_with_the_address_of_another(plugs):
    join(plugs[0], 0, 2, ip=plugs[1].attached.ip)
    with pytest.raises(CableClosedError):
        plugs[0].channel.receive_within(5)


def test_a_ring_larger_than_the_switch_can_hold_is_refused_with_a_reason(plugs):
    geometry = control.Geometry(message_window=64, message_packets=1024)
    for rank, plug in enumerate(plugs):
        plug.channel.send(control.Join("huge", 3, endpoint(plug, rank), geometry))
    refusals = {answer_of(plug, control.Refused).reason for plug in plugs}
    assert len(refusals) == 1
    assert refusals.pop()


def test_the_last_port_taken_is_a_clear_error(address, plugs):
    fourth = plug_in(address, "fourth")
    try:
        with pytest.raises(SwitchLostError, match="all 4 ports of the switch are taken"):
            plug_in(address, "one too many")
    finally:
        fourth.cable.close()
        fourth.channel.close()


def test_a_killed_process_is_noticed_though_its_forked_child_holds_the_cable(plugs, address):
    code = f"""
import os, time
from netreduce.runtime.plug import plug_in
from netreduce.wire import control
plug = plug_in({address!r}, "victim")
endpoint = control.Endpoint(0, plug.attached.ip, plug.attached.mac, 1, 2, 0)
plug.channel.send(control.Join("doomed", 2, endpoint, control.Geometry()))
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""
    victim = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(victim.stdout.readline())
    join(plugs[0], 1, 2, "doomed")
    ring_id = answer_of(plugs[0], control.Joined).ring_id
    killed_at = time.monotonic()
    victim.kill()
    lost = answer_of(plugs[0], control.PeerLost)
    assert time.monotonic() - killed_at < bound_s()
    assert (lost.ring_id, lost.rank) == (ring_id, 0)
    assert f"process {victim.pid}" in lost.reason
    os.kill(child, 9)
    victim.wait()
    victim.stdout.close()


def test_reports_of_workers_are_summed_for_the_summary(address, plugs):
    before = observe(address).workers.get("sent_pkts", 0)
    for plug in plugs:
        plug.channel.send(control.Report({"sent_pkts": 5}))
        plug.channel.send(control.StatisticsRequest())
        answer_of(plug, control.Statistics)
    assert observe(address).workers["sent_pkts"] == before + 15


def test_a_worker_that_does_not_read_loses_frames_not_the_others_theirs(address, plugs):
    slow, sender, reader = plugs
    frame = frame_from(mac(sender), mac(slow), bytes(4000))
    for _ in range(100):
        burst = filled_queue([frame] * 30)
        Outlet(sender.cable, burst).send()
        time.sleep(0.001)
    assert_forwards(sender, reader)
    port = observe(address).ports[str(slow.attached.port)]
    assert port["packets_out"] + port["egress_drops"] > 0


def test_the_server_ends_without_owner_and_cables_and_leaves_no_descriptor():
    before = descriptors()
    with served() as address:
        plug = plug_in(address, "worker")
        silent = ControlChannel(connect(address))
        plug.cable.close()
        plug.channel.close()
    silent.close()
    assert eventually(lambda: len(descriptors()) <= len(before)), (before, descriptors())
