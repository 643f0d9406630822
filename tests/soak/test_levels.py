"""Rings over levels of switches: sums, order, streams on the cables between, and what captures there show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from netreduce.control.topology import (
    CableEntry,
    HostEntry,
    SwitchEntry,
    Topology,
    leaf_spine_topology,
    three_level_topology,
)
from netreduce.fabric import Line, Recording, SeenFrame
from netreduce.nic import NicLimits
from netreduce.soak.checkers import check
from netreduce.soak.oracle import make_input, reduce_in_order
from netreduce.soak.program import Reliability, Ring
from netreduce.soak.rig import Rig, RigSettings
from netreduce.switch import SwitchLimits
from netreduce.units import PS_PER_S
from netreduce.wire.build import build_frame
from netreduce.wire.capture import read_capture
from netreduce.wire.control import Geometry
from netreduce.wire.dissect import Dissector, FrameView
from netreduce.wire.frames import queue_put
from netreduce.wire.ina import DataType, ReduceOp
from netreduce.wire.opcodes import Opcode

SMALL = Geometry(message_window=2, message_packets=4, path_mtu=256)
QUICK = Reliability(timeout=8)


def four_levels() -> Topology:
    """Two halls of two pods, each a rack or two, under one switch."""
    lower = {"leaf0": "spine0", "leaf1": "spine0", "leaf2": "spine1", "leaf3": "spine2", "spine0": "core0"}
    upper = {"spine1": "core0", "spine2": "core1", "core0": "top", "core1": "top"}
    cables = tuple(CableEntry(ends) for ends in (lower | upper).items())
    hosts = [HostEntry(f"worker{i}", leaf) for i, leaf in enumerate(["leaf0", "leaf0", "leaf1", "leaf2", "leaf3"])]
    names = sorted({end for cable in cables for end in cable.ends})
    return Topology(tuple(hosts), tuple(map(SwitchEntry, names)), cables)


SHAPES = {
    "two racks": leaf_spine_topology([2, 2]),
    "unequal racks": leaf_spine_topology([4, 1, 2], 3),
    "racks of one": leaf_spine_topology([1, 1, 1]),
    "one rack": leaf_spine_topology([3]),
    "pods": three_level_topology([[3, 1], [2], [1, 1]], 2, 2),
    "four levels": four_levels(),
    "a pod of one": three_level_topology([[1], [2, 3]]),
}
MESSAGES, PACKETS = 5, 20
SENDS = {opcode for opcode in Opcode if opcode.name.startswith("SEND")}
NIC_LIMITS = NicLimits(queue_pairs=16, memory_regions=64, send_depth=64, receive_depth=64, completion_depth=4096)
SWITCH_LIMITS = SwitchLimits(memory_bytes=1 << 20, egress_bytes=1 << 18, rings=8, connections=64, macs=64)


def rig_of(topology: Topology, gap_policy: str = "hold") -> Rig:
    return Rig(
        RigSettings(topology=topology, gap_policy=gap_policy, nic_limits=NIC_LIMITS, switch_limits=SWITCH_LIMITS)
    )


def make(topology: Topology, gap_policy: str = "hold") -> tuple[Rig, Ring, list[np.ndarray]]:
    """A rig and a ring over all its hosts, with an all-reduce of float32 of five full messages."""
    rig = rig_of(topology, gap_policy)
    count = len(rig.nics)
    ring = rig.ring(SMALL, first_psns=[0xFFFFF0 + 0x1000 * rank for rank in range(count)], reliability=QUICK)
    random = np.random.default_rng(1)
    length = MESSAGES * SMALL.message_data_bytes // 4
    arrays = [make_input(random, DataType.FLOAT32, length) for _ in range(count)]
    ring.all_reduce(arrays)
    return rig, ring, arrays


def finish(rig: Rig, ring: Ring, arrays: list[np.ndarray], expected: np.ndarray) -> None:
    rig.simulator.run_until(lambda: ring.done, limit_ps=PS_PER_S)
    rig.simulator.run_until_quiet(limit_ps=PS_PER_S)
    assert check(rig) == []
    assert all(array.tobytes() == expected.tobytes() for array in arrays)


def numpys(rig: Rig, ring: Ring, arrays: list[np.ndarray]) -> np.ndarray:
    order = rig.plane.placements[ring.ring_id].order()
    return reduce_in_order(order, arrays, DataType.FLOAT32, ReduceOp.SUM)


def retransmitted(rig: Rig) -> list[int]:
    return [nic.counters()["retransmitted_pkts"] for nic in rig.nics]


def views(path: Path) -> list[FrameView]:
    dissector = Dissector()
    with path.open("rb") as file:
        return [dissector.view(frame)[0] for frame in read_capture(file, path.name)]


def is_data(view: FrameView) -> bool:
    return view.opcode in SENDS


@pytest.mark.parametrize("gap_policy", ["pass", "hold"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_rank_gets_the_sum_rank_by_rank_and_rack_by_rack_to_the_bit(shape: str, gap_policy: str) -> None:
    rig, ring, arrays = make(SHAPES[shape], gap_policy)
    expected = numpys(rig, ring, arrays)
    finish(rig, ring, arrays, expected)
    assert retransmitted(rig) == [0] * len(rig.nics)


def test_the_order_is_that_of_brackets_written_out_by_hand() -> None:
    rig, ring, (a, b, c, d, e) = make(leaf_spine_topology([2, 3]))
    expected = (a + b) + ((c + d) + e)
    assert not np.array_equal(expected, (((a + b) + c) + d) + e), "the data must tell the orders apart"
    finish(rig, ring, [a, b, c, d, e], expected)


@pytest.mark.parametrize("data_type", [DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT64, DataType.INT8])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX])
def test_types_and_operations_over_three_levels(data_type: DataType, op: ReduceOp, rng: np.random.Generator) -> None:
    rig = rig_of(SHAPES["pods"])
    ring = rig.ring(SMALL)
    arrays = [make_input(rng, data_type, 700) for _ in rig.nics]
    expected = reduce_in_order(rig.plane.placements[1].order(), arrays, data_type, op)
    ring.all_reduce(arrays, data_type, op)
    finish(rig, ring, arrays, expected)


def test_each_uplink_carries_one_stream_a_rack_whatever_the_number_of_its_ranks(tmp_path: Path) -> None:
    rig, ring, arrays = make(three_level_topology([[5, 1], [3]]))
    recordings = {name: Recording() for name in [*rig.cables, "host"]}
    for name, link in rig.cables.items():
        rig.simulator.tap(recordings[name], [link.up, link.down])
    rig.simulator.tap(recordings["host"], [rig.links[0].up, rig.links[0].down])
    finish(rig, ring, arrays, numpys(rig, ring, arrays))
    found = {}
    for number, (name, recording) in enumerate(recordings.items()):
        recording.write(path := tmp_path / f"{number}.pcapng")
        sides: dict[str, list[int]] = {}
        for view in views(path):
            if is_data(view):
                sides.setdefault(view.port, []).append(view.wire_bytes)
        found[name] = sorted((len(frames), sum(frames)) for frames in sides.values())
    one_rank = found.pop("host")
    assert [frames for frames, _ in one_rank] == [PACKETS, PACKETS]
    assert all(streams == one_rank for streams in found.values()), found


def test_captures_of_any_link_show_valid_frames_of_connections_between_neighbours(tmp_path: Path) -> None:
    rig, ring, arrays = make(SHAPES["pods"])
    recording = Recording()
    rig.simulator.tap(recording)
    rig.simulator.drop(probability=0.01)
    finish(rig, ring, arrays, numpys(rig, ring, arrays))
    recording.write(tmp_path / "all.pcapng")
    found = views(tmp_path / "all.pcapng")
    assert len({view.port for view in found}) == 2 * (len(rig.links) + len(rig.plane.placements[1].above) - 1)
    assert {view.icrc for view in found} == {"good"}
    assert not [view for view in found if view.problem or view.note]
    ips = [nic.ip for nic in rig.nics]
    neighbours = set(zip(ips, [*ips[1:], ips[0]], strict=True))
    assert {(view.source_ip, view.destination_ip) for view in found if is_data(view)} == neighbours
    assert {(v.destination_ip, v.source_ip) for v in found if v.opcode == Opcode.ACKNOWLEDGE} == neighbours


def test_rings_are_spread_over_the_spines_and_each_cable_carries_its_own() -> None:
    rig = rig_of(leaf_spine_topology([2, 2], 2))
    rings = [rig.ring(SMALL, reliability=QUICK) for _ in range(4)]
    arrays = [[np.full(700, rank + 1, np.float32) for rank in range(4)] for _ in rings]
    for ring, group in zip(rings, arrays, strict=True):
        ring.all_reduce(group)
    rig.simulator.drop(probability=0.01)
    rig.simulator.run_until(lambda: all(ring.done for ring in rings), limit_ps=PS_PER_S)
    rig.simulator.run_until_quiet(limit_ps=PS_PER_S)
    assert check(rig) == []
    assert all(np.all(array == 10) for group in arrays for array in group)
    roots = [rig.plane.placements[ring.ring_id].root for ring in rings]
    assert sorted(roots) == ["spine0", "spine0", "spine1", "spine1"]
    assert all(rig.switches[f"spine{i}"].counters()["messages_aggregated"] == 2 * len(rings[0].ranks[0].messages)
               for i in range(2))  # fmt: skip


def test_a_total_that_is_lost_on_its_way_down_costs_only_its_own_sender_a_retransmission() -> None:
    rig, ring, arrays = make(leaf_spine_topology([3, 3]))
    lost = rig.cables["leaf1", "spine0"].down.drop(psn=(0xFFFFF0 + 0x2000 + 9) & 0xFFFFFF)
    finish(rig, ring, arrays, numpys(rig, ring, arrays))
    assert lost.struck == 1
    assert [rank for rank, count in enumerate(retransmitted(rig)) if count] == [2], "rank 2 sends into the other rack"


@pytest.mark.parametrize("gap_policy", ["pass", "hold"])
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("cable", [("leaf0", "spine0"), ("spine0", "core0"), ("leaf2", "spine1")])
def test_whatever_is_lost_between_switches_is_recovered(
    cable: tuple[str, str], direction: str, gap_policy: str
) -> None:
    """Every packet that crosses the cable is lost once, with data, totals and answers alike."""
    rig, ring, arrays = make(three_level_topology([[2, 1], [2]]), gap_policy)
    seen: set[bytes] = set()

    def is_first(frame: SeenFrame) -> bool:
        headers = frame.data[:54].tobytes()
        is_new = headers not in seen
        seen.add(headers)
        return is_new

    line: Line = getattr(rig.cables[cable], direction)
    rule = line.drop(where=is_first)
    finish(rig, ring, arrays, numpys(rig, ring, arrays))
    assert rule.struck >= PACKETS


def test_a_rank_that_nobody_in_its_rack_has_heard_of_is_named_with_its_rack_and_others_alone() -> None:
    rig, ring, _ = make(three_level_topology([[3, 1], [2, 1]]))
    for rank in (1, 4, 5):
        ring.ranks[rank].paused = True
    rig.simulator.run_for(PS_PER_S // 10)
    waiting = rig.plane.waiting(rig.simulator.now_ps, 0)
    assert {entry.missing_ranks for entry in waiting} == {(1, 4, 5)}
    assert {entry.message_id for entry in waiting} == {0, 1}
    assert all(entry.waiting_s > 0.09 for entry in waiting)


def test_racks_that_disagree_are_told_apart_at_the_spine_and_failed_everywhere() -> None:
    rig = rig_of(leaf_spine_topology([2, 2]))
    ring = rig.ring(SMALL, reliability=QUICK)
    for rank in ring.ranks:
        array = np.ones(100 if rank.rank < 2 else 101, np.float32)
        rank.all_reduce(array, DataType.FLOAT32, ReduceOp.SUM, array)
    rig.simulator.run_for(PS_PER_S // 100)
    (notice,) = rig.plane.notices()
    assert {notice.rank_a, notice.rank_b} == {1, 3}, "those whose connections leave the racks"
    assert {"400" in notice.description_a, "404" in notice.description_a} == {True, False}
    rig.simulator.run_for(PS_PER_S // 10)
    assert len(ring.errors) == 4
    assert all(switch.counters()["drop_ring_failed"] > 0 for switch in rig.switches.values())


def send(rig: Rig, host: int, **addresses: str) -> None:
    """Let a frame of no ring leave a host, and wait until all is quiet."""
    egress = rig.nics[host].egress(0)
    queue_put(egress.data, egress.state[0], build_frame(Opcode.SEND_ONLY, **addresses), rig.simulator.now_ps)
    rig.simulator.run_until_quiet(limit_ps=PS_PER_S)


def delivered(rig: Rig) -> list[int]:
    return [link.down.counters()["delivered_frames"] for link in rig.links]


def test_a_flooded_frame_reaches_every_other_host_once_although_there_are_loops() -> None:
    rig = rig_of(three_level_topology([[2, 1], [1]], 2, 2))
    send(rig, 0, destination_mac="ff:ff:ff:ff:ff:ff", source_mac=rig.nics[0].mac)
    assert delivered(rig) == [0, 1, 1, 1]


def test_a_host_that_claims_the_address_of_one_in_another_rack_is_not_let_in() -> None:
    rig = rig_of(leaf_spine_topology([2, 2], 2))
    send(rig, 0, source_mac=rig.nics[2].mac, destination_mac=rig.nics[3].mac)
    assert delivered(rig) == [0, 0, 0, 0]
    assert rig.switches["leaf0"].counters()["drop_wrong_port"] == 1
    send(rig, 0, source_mac=rig.nics[0].mac, destination_mac=rig.nics[3].mac)
    assert delivered(rig) == [0, 0, 0, 1]


def test_what_comes_down_before_its_parts_went_up_is_dropped() -> None:
    """Rank 0's frames are brought to its successor's rack by the spine, which forwards, while nobody there has sent."""
    rig, ring, _ = make(leaf_spine_topology([1, 2]))
    for rank in ring.ranks[1:]:
        rank.paused = True
    rig.switches["leaf0"].unregister_ring(ring.ring_id)
    rig.switches["spine0"].unregister_ring(ring.ring_id)
    rig.simulator.run_for(PS_PER_S // 1000)
    assert rig.switches["leaf1"].counters()["drop_out_of_sequence"] > 0
    assert ring.ranks[1].received_count == 0
