"""The ring as NCCL issues it, counted in a capture: chunks of 1 MiB, and the clear-to-send slots against the ring."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.collectives.slots import FIFO_SLOTS
from netreduce.fabric import Recording
from netreduce.nic.verbs import IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE, QP, SendWR
from netreduce.soak.engines import EngineRig, EngineRigSettings
from netreduce.units import MIB
from netreduce.wire.capture import read_capture
from netreduce.wire.control import Geometry
from netreduce.wire.dissect import Dissector, FrameView
from netreduce.wire.opcodes import Opcode

SLOT_BYTES = 64


def captured(
    path: Path, world_size: int, elements: int, *, path_mtu: int, channels: int = 1, calls: int = 1
) -> list[FrameView]:
    """What reached the switch in ring all-reduces, read back from the capture file."""
    geometry = Geometry(message_window=1, message_packets=4, path_mtu=path_mtu)
    tuning = Tuning(channels=(tuple(range(world_size)),) * channels)
    rig = EngineRig(EngineRigSettings(world_size, geometry, tuning))
    recording = Recording()
    rig.simulator.tap(recording, [link.up for link in rig.links])
    for _ in range(calls):
        arrays = [np.full(elements, 10.0**rank, np.float32) for rank in range(world_size)]
        rig.run([e.all_reduce(a, algorithm=Algorithm.RING) for e, a in zip(rig.engines, arrays, strict=True)])
        assert all(np.all(array == float("1" * world_size)) for array in arrays)
    recording.write(path)
    dissector = Dissector()
    with path.open("rb") as file:
        return [dissector.view(frame)[0] for frame in read_capture(file, path.name)]


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> list[FrameView]:
    """Two hosts reduce 2 MiB: two chunks of 1 MiB, two hops each."""
    return captured(tmp_path_factory.mktemp("ring") / "ring.pcapng", 2, 2 * MIB // 4, path_mtu=4096)


def test_a_chunk_of_1_mib_is_a_first_254_middle_and_a_last_with_immediate(two_hosts: list[FrameView]) -> None:
    chunks = 2 * 2  # hosts times hops
    data = [view for view in two_hosts if view.payload_bytes > SLOT_BYTES]
    assert Counter(view.opcode for view in data) == {
        Opcode.RDMA_WRITE_FIRST: chunks,
        Opcode.RDMA_WRITE_MIDDLE: 254 * chunks,
        Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE: chunks,
    }
    assert {view.payload_bytes for view in data} == {4096}
    assert {view.dma_length for view in data if view.dma_length >= 0} == {MIB}
    assert all(view.icrc == "good" for view in two_hosts)


def test_the_packets_of_a_chunk_follow_each_other_in_psn_order(two_hosts: list[FrameView]) -> None:
    for source in ("10.78.0.1", "10.78.0.2"):
        psns = [view.psn for view in two_hosts if view.source_ip == source and view.payload_bytes == 4096]
        assert len(psns) == 512
        runs = [psns[:256], psns[256:]]  # between the two, a clear-to-send write may take PSNs of the same queue pair
        for run in runs:
            assert run == [(run[0] + i) % (1 << 24) for i in range(256)]


def test_clear_to_send_slots_of_64_bytes_go_against_the_ring(tmp_path: Path) -> None:
    views = captured(tmp_path / "ring.pcapng", 3, 3 * 64, path_mtu=256)
    writes = [view for view in views if view.opcode == Opcode.RDMA_WRITE_ONLY]
    assert {view.payload_bytes for view in writes} == {view.dma_length for view in writes} == {SLOT_BYTES}
    against = {("10.78.0.1", "10.78.0.3"), ("10.78.0.2", "10.78.0.1"), ("10.78.0.3", "10.78.0.2")}
    hops = 2 * (3 - 1)
    assert Counter((view.source_ip, view.destination_ip) for view in writes) == dict.fromkeys(against, hops)
    chunks = [view for view in views if view.immediate >= 0]
    assert {(view.destination_ip, view.source_ip) for view in chunks} == against
    assert len(chunks) == 3 * hops


def test_slots_fill_a_fifo_of_256_places_one_signaled_a_pass_none_inline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []  # of the slots that both hosts post
    post_send = QP.post_send

    def spy(qp: QP, request: SendWR) -> None:
        if request.opcode == IBV_WR_RDMA_WRITE and request.sg[0].length == SLOT_BYTES:
            flags.append(request.send_flags)
        post_send(qp, request)

    monkeypatch.setattr(QP, "post_send", spy)
    hops, calls = 2 * (2 - 1), FIFO_SLOTS // 2 + 2
    views = captured(tmp_path / "ring.pcapng", 2, 2, path_mtu=256, calls=calls)
    addresses = [
        view.remote_address for view in views if view.source_ip == "10.78.0.1" and view.payload_bytes == SLOT_BYTES
    ]
    assert [(address - addresses[0]) // SLOT_BYTES for address in addresses] == [
        number % FIFO_SLOTS for number in range(hops * calls)
    ]
    passes_begun = 2
    assert Counter(flags) == {IBV_SEND_SIGNALED: 2 * passes_begun, 0: 2 * (hops * calls - passes_begun)}


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_channels_cut_each_chunk_and_write_slots_of_their_own(tmp_path: Path, channels: int) -> None:
    views = captured(tmp_path / "ring.pcapng", 2, 2 * 512, path_mtu=1024, channels=channels)
    chunks = [view for view in views if view.immediate >= 0]
    assert len(chunks) == 4 * channels
    named = [view.dma_length for view in views if view.dma_length > SLOT_BYTES]
    assert Counter(named) == {2048 // channels: 4 * channels}
    assert sum(view.payload_bytes == SLOT_BYTES for view in views) == 4 * channels
