"""Traces of live runs: what recorders write down, how it is merged, where it is cut, and a run that is walked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netreduce.nic import Nic
from netreduce.runtime import tracing
from netreduce.runtime.tracing import SWITCH, Recorder, assemble, worker_recorder, worker_stem
from netreduce.trace.events import Event, emit
from netreduce.trace.recording import EventMoment, FrameMoment, NodeInfo, read_trace
from netreduce.viewer.walks import walk_of
from netreduce.wire.frames import make_queue, queue_put


class Sink:
    """A node that notes when frames come, and logs an event for each."""

    name, port_count = "sink", 4

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.seen: list[tuple[int, int, int]] = []

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        self.seen.append((port, burst.size, now_ps))
        log_event(self.recorder, now_ps, port)


def log_event(recorder: Recorder, now_ps: int, port: int = -1) -> None:
    emit(recorder.log, now_ps, Event.FORWARDED.value, port, -1, -1, -1, -1, -1, -1, -1, -1)


def burst(*lengths: int) -> np.ndarray:
    """Frames of zeros of these lengths, stamped by their sender at 5 ps."""
    queue = make_queue(1 << 16)
    for length in lengths:
        assert queue_put(queue.data, queue.state[0], np.zeros(length, np.uint8), 5)
    return queue.data[: int(queue.state[0].tail)].copy()


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ps = 0

    def __call__(self) -> int:
        return self.now_ps


@pytest.fixture
def clock() -> Hand:
    return Hand()


def make_switch(directory: Path, clock: Hand) -> Recorder:
    return Recorder(directory, SWITCH, NodeInfo(SWITCH, "switch"), clock)


def make_worker(directory: Path, clock: Hand) -> Recorder:
    """The recorder of rank 0, at port 2."""
    return Recorder(directory, worker_stem(2), NodeInfo("rank 0", "host", "10.78.0.4"), clock)


def test_frames_of_a_burst_reach_the_node_one_by_one_each_with_its_events_behind_it(
    tmp_path: Path, clock: Hand
) -> None:
    recorder = make_switch(tmp_path, clock)
    make_worker(tmp_path, clock).close()
    node = Sink(recorder)
    clock.now_ps = 1000
    assert recorder.receive(node, 2, burst(60, 70, 80)) == 1002
    recorder.close()
    assert [(port, now) for port, _, now in node.seen] == [(2, 1000), (2, 1001), (2, 1002)]
    assert assemble(tmp_path, tmp_path / "t.jsonl", "three frames") == (6, False)
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.header.title == "three frames"
    assert [node.name for node in trace.header.nodes] == ["rank 0", SWITCH]
    moments = list(trace)
    assert [moment.t_ps for moment in moments] == [1000, 1000, 1001, 1001, 1002, 1002]
    frames = [moment for moment in moments if isinstance(moment, FrameMoment)]
    assert [(frame.source, frame.target, frame.view.wire_bytes) for frame in frames] == [
        ("rank 0", SWITCH, 60),
        ("rank 0", SWITCH, 70),
        ("rank 0", SWITCH, 80),
    ]
    assert all(isinstance(moment, EventMoment) and moment.node == SWITCH for moment in moments[1::2])


def test_parts_of_all_processes_are_merged_by_time(tmp_path: Path, clock: Hand) -> None:
    switch, worker = make_switch(tmp_path, clock), make_worker(tmp_path, clock)
    log_event(worker, 10)
    worker.note()
    clock.now_ps = 20
    switch.receive(Sink(switch), 2, burst(60))
    clock.now_ps = 30
    worker.receive(Sink(worker), 0, burst(60))
    log_event(switch, 40)
    for recorder in (switch, worker):
        recorder.close()
    assemble(tmp_path, tmp_path / "t.jsonl", "")
    moments = list(read_trace(tmp_path / "t.jsonl"))
    assert [moment.t_ps for moment in moments] == [10, 20, 20, 30, 30, 40]
    assert [(m.source, m.target) for m in moments if isinstance(m, FrameMoment)] == [
        ("rank 0", SWITCH),
        (SWITCH, "rank 0"),
    ]


def test_events_of_a_late_timer_do_not_go_back_in_time(tmp_path: Path, clock: Hand) -> None:
    switch = make_switch(tmp_path, clock)
    clock.now_ps = 100
    switch.receive(Sink(switch), 0, burst(60, 60))
    log_event(switch, 100)  # as `advance` does, whose time was read before the burst was split
    switch.close()
    assemble(tmp_path, tmp_path / "t.jsonl", "")
    assert [moment.t_ps for moment in read_trace(tmp_path / "t.jsonl")] == [100, 100, 101, 101, 101]


def test_a_trace_is_cut_where_the_first_process_stopped_recording(
    tmp_path: Path, clock: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "RECORDED_BYTES_MAX", 500)
    switch, worker = make_switch(tmp_path, clock), make_worker(tmp_path, clock)
    for time_ps in range(10):
        log_event(worker, 10 * time_ps)
        worker.note()
    log_event(switch, 45)
    log_event(switch, 1000)
    for recorder in (switch, worker):
        recorder.close()
    moments, is_cut = assemble(tmp_path, tmp_path / "t.jsonl", "")
    assert is_cut
    assert [moment.t_ps for moment in read_trace(tmp_path / "t.jsonl")] == [0, 10, 20, 30, 40, 45]
    assert moments == 6


def test_a_trace_is_cut_after_the_most_moments_that_one_can_have(tmp_path: Path, clock: Hand) -> None:
    switch = make_switch(tmp_path, clock)
    for time_ps in range(10):
        log_event(switch, time_ps)
    switch.close()
    assert assemble(tmp_path, tmp_path / "t.jsonl", "", moments_max=4) == (4, True)
    assert len(list(read_trace(tmp_path / "t.jsonl"))) == 4


def test_a_log_that_overflowed_cuts_the_trace_before_the_gap(
    tmp_path: Path, clock: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "LOG_CAPACITY", 4)
    switch = make_switch(tmp_path, clock)
    log_event(switch, 1)
    switch.note()
    for time_ps in range(10, 20):
        log_event(switch, time_ps)
    switch.close()
    assert assemble(tmp_path, tmp_path / "t.jsonl", "") == (1, True)


def test_the_torn_end_of_a_killed_process_is_left_out(tmp_path: Path, clock: Hand) -> None:
    switch = make_switch(tmp_path, clock)
    switch.receive(Sink(switch), 2, burst(60, 70))
    switch.close()
    (file,) = tmp_path.glob("switch.port2")
    file.write_bytes(file.read_bytes()[:-20])
    assert assemble(tmp_path, tmp_path / "t.jsonl", "") == (3, False)


def test_workers_of_equal_name_are_told_apart_and_sorted_by_number(tmp_path: Path, clock: Hand) -> None:
    for port, name in enumerate(["rank 10", "rank 9", "rank 0", "rank 0"]):
        Recorder(tmp_path, worker_stem(port), NodeInfo(name, "host"), clock).close()
    assemble(tmp_path, tmp_path / "t.jsonl", "")
    names = [node.name for node in read_trace(tmp_path / "t.jsonl").header.nodes]
    assert names == ["rank 0, worker2", "rank 0, worker3", "rank 9", "rank 10"]


def test_a_worker_records_only_when_it_is_asked_to(
    tmp_path: Path, clock: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(tracing.TRACE_VARIABLE, raising=False)
    assert worker_recorder(0, "rank 0", "10.78.0.2", clock) is None
    monkeypatch.setenv(tracing.TRACE_VARIABLE, str(tmp_path))
    recorder = worker_recorder(0, "rank 0", "10.78.0.2", clock)
    assert recorder is not None
    nic = Nic("rank 0", "02:4e:52:00:00:02", "10.78.0.2", events=recorder.log)
    recorder.receive(nic, 0, burst(60))
    recorder.close()
    assemble(tmp_path, tmp_path / "t.jsonl", "")
    events = [moment.event for moment in read_trace(tmp_path / "t.jsonl") if isinstance(moment, EventMoment)]
    assert events == ["DROPPED"]


WORKER = """
import numpy as np, netreduce
with netreduce.Communicator.connect() as world:
    gradient = np.full(3000, 10.0**world.rank, np.float32)
    world.all_reduce(gradient)
    assert np.all(gradient == 111)
"""


@pytest.mark.live
@pytest.mark.timeout(400)
def test_a_run_leaves_a_trace_that_tells_how_the_switch_added(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "netreduce", "run", "-n", "3", "--trace", str(path), "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", WORKER], capture_output=True, text=True, timeout=390, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"netreduce walk {path} plays it" in done.stderr
    trace = read_trace(path)
    assert [node.name for node in trace.header.nodes] == ["rank 0", "rank 1", "rank 2", SWITCH]
    assert trace.header.element == "float32"
    times = [moment.t_ps for moment in trace]
    assert times == sorted(times)
    crossed: set[int] = set()
    for frame in [moment for moment in trace if isinstance(moment, FrameMoment)]:
        assert frame.target == SWITCH or frame.view.psn in crossed, "nothing arrives before it was sent"
        crossed.add(frame.view.psn)
    steps = walk_of(trace)["walks"][0]["steps"]
    sums = [step for step in steps if "sum and splice" in step["title"]]
    assert len(sums) >= 3, "a message of 12,016 bytes has three packets; a slow machine sends some again"
    assert all("1 + 10 + 100" in step["text"] and len(step["frames"]) >= 3 for step in sums)
    assert any(step["title"].endswith("receives") and "(111)" in step["text"] for step in steps)
    done = subprocess.run(
        [sys.executable, "-m", "netreduce", "walk", str(path), "--export", str(tmp_path / "run.html")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sum and splice" in (tmp_path / "run.html").read_text()


@pytest.mark.live
def test_a_trace_that_cannot_be_written_is_an_error_before_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "netreduce", "run", "--trace", str(tmp_path / "no" / "t.jsonl"), "--", "false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr.splitlines()[-1]
