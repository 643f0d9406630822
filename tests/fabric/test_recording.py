"""A recording, read back by the project's capture reader and by scapy."""

from __future__ import annotations

from pathlib import Path

from scapy.utils import PcapNgReader
from tests.fabric.toys import Hub, Source, star

from netreduce.fabric import Recording, Simulator
from netreduce.units import GBPS, PS_PER_US
from netreduce.wire.capture import read_capture


def test_a_recording_keeps_each_delivery_with_its_time_and_line(tmp_path: Path) -> None:
    hosts = [Source(f"worker{i}", count=3, length=200 + i) for i in range(3)]
    simulator = Simulator(quantum_ps=PS_PER_US)
    star(simulator, hosts, Hub("switch", port_count=3), rate_bps=100 * GBPS, delay_ps=500_000)
    recording = Recording()
    simulator.tap(recording)
    simulator.run_until_quiet(limit_ps=PS_PER_US * 1000)
    path = tmp_path / "run.pcapng"
    recording.write(path)
    frames = recording.frames()
    assert len(frames) == 9 + 18
    assert [f.time_ps for f in frames if f.line == "worker1:0>switch:1"] == [
        500_000 + (i + 1) * (201 + 24) * 80 for i in range(3)
    ]
    with path.open("rb") as stream:
        read = [(frame.time_ns, frame.interface_name, frame.data) for frame in read_capture(stream, path.name)]
    assert read == [(frame.time_ps // 1000, frame.line, frame.data) for frame in frames]
    with PcapNgReader(str(path)) as reader:
        assert [bytes(packet) for packet in reader] == [frame.data for frame in frames]
