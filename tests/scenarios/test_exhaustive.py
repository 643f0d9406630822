"""All orders in which three packets of each of three ranks can reach the switches, with one loss and one duplicate.

Here the network is a for-loop, which delivers the first nine packets in each of the 9! / (3!)^3 = 1,680 orders that
keep every connection's own, and then whatever follows in turn. Each case is one more message of the same long
all-reduce, so that cases also meet what earlier ones left behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import IN_CI
from tests.scenarios.scenario import QUICK, SHAPES, SMALL_NIC, SMALL_SWITCH

from netreduce.compiled import JIT_DISABLED
from netreduce.control.switch_network import SwitchNetwork
from netreduce.soak.oracle import reduce_in_order
from netreduce.soak.rig import Rig, RigSettings
from netreduce.units import NEVER_PS
from netreduce.wire.control import Geometry
from netreduce.wire.frames import FrameQueue, queue_burst_end, queue_release, record_bytes, record_length
from netreduce.wire.ina import DataType, ReduceOp

RANKS = PACKETS = 3
FRAMES = [(rank, packet) for rank in range(RANKS) for packet in range(PACKETS)]
STRIDES = {"pass": 97, "hold": 97} if JIT_DISABLED else {"pass": 1, "hold": 7} if IN_CI else {"pass": 7, "hold": 49}
"""Of how many orders one is tried: all of them in CI, for the gap policy that is the default."""
LEVELS_STRIDE = 97
"""Over levels of switches, where each frame takes several steps."""
STEPS_MAX = 200

Frame = tuple[int, int]
"""A frame by its rank and its place in the message."""


def orders(left: tuple[int, ...] = (PACKETS,) * RANKS) -> Iterator[tuple[int, ...]]:
    """Every order of arrival, as a sequence of ranks."""
    if not any(left):
        yield ()
    for rank in range(RANKS):
        if left[rank]:
            for rest in orders(tuple(count - (other == rank) for other, count in enumerate(left))):
                yield (rank, *rest)


class Egress:
    """An egress queue, emptied without links."""

    def __init__(self, queue: FrameQueue) -> None:
        self._queue = queue
        self._frames = queue.state.view(np.ndarray)["frames"]  # read without the cost of a record

    def bursts(self) -> Iterator[np.ndarray]:
        """What waits, as the longest bursts that there are."""
        while self._frames[0]:
            data, state = self._queue.data, self._queue.state[0]
            end = int(queue_burst_end(data, state, data.size))
            start = int(state.head)
            queue_release(data, state, end)
            yield data[start:end]

    def frames(self) -> list[np.ndarray]:
        """What waits, as bursts of one frame each."""
        found = []
        for burst in self.bursts():
            at = 0
            while at < burst.size:
                size = int(record_bytes(record_length(burst, at)))
                found.append(burst[at : at + size].copy())
                at += size
        return found


class ForLoop:
    """Ranks and switches without links: `run` plays one case."""

    def __init__(
        self, messages: int, gap_policy: str, shape: str = "star", ranks: int = RANKS, packets: int = PACKETS
    ) -> None:
        self.packets = packets
        self.rig = Rig(RigSettings(ranks, nic_limits=SMALL_NIC, switch_limits=SMALL_SWITCH))
        self.switch = SwitchNetwork(SHAPES[shape](ranks), limits=SMALL_SWITCH, gap_policy=gap_policy)
        for port, nic in enumerate(self.rig.nics):
            self.switch.attach(port, nic.mac, nic.ip)
        geometry, psns = (
            Geometry(message_window=1, message_packets=packets, path_mtu=256),
            range(0xFFFFF0, 0xFFFFF0 + ranks),
        )
        self.ring = self.rig.ring(geometry, first_psns=psns, reliability=QUICK, splice=False)
        self.switch.register_ring(self.ring.spec())
        random = np.random.default_rng(1)
        count = messages * geometry.message_data_bytes // 4
        self.arrays = [random.standard_normal(count).astype(np.float32) for _ in range(ranks)]
        order = self.switch.plane.placements[self.ring.ring_id].order()
        self.expected = reduce_in_order(order, self.arrays, DataType.FLOAT32, ReduceOp.SUM)
        self.ring.all_reduce(self.arrays)
        self.now_ps = 0
        self.from_switch = [Egress(self.switch.egress(port)) for port in range(ranks)]
        self.from_nic = [Egress(nic.egress(0)) for nic in self.rig.nics]

    def run(self, order: Sequence[int], lost: Collection[Frame], twice: Collection[Frame]) -> None:
        """Send one message on each connection; all must have been received and acknowledged when it returns.

        The first packets arrive in `order` of ranks but for those `lost`; those `twice` arrive again after all others.
        """
        frames = [self._post(rank) for rank in range(len(self.ring.ranks))]
        late = []
        for rank in order:
            frame = (rank, self.packets - len(frames[rank]))
            burst = frames[rank].pop(0)
            if frame in twice:
                late.append((rank, burst.copy()))
            if frame not in lost:
                self.switch.receive(rank, burst, self.now_ps)
        for rank, burst in late:
            self.switch.receive(rank, burst, self.now_ps)
        self._drain()

    def check(self) -> None:
        """Every rank has every sum."""
        assert self.ring.done
        assert self.ring.errors == []
        assert all(np.array_equal(array, self.expected) for array in self.arrays)

    def _post(self, rank: int) -> list[np.ndarray]:
        program = self.ring.ranks[rank]
        program.paused = False
        program.progress(self.now_ps)
        program.paused = True
        program.nic.advance(self.now_ps)
        frames = self.from_nic[rank].frames()
        assert len(frames) == self.packets
        return frames

    def _drain(self) -> None:
        """Deliver what is under way, and let timers fire, until every rank has finished the message."""
        for _ in range(STEPS_MAX):
            if not self._exchange():
                if all(rank.messages[rank.sent_count - 1].acknowledged and rank.received_count == rank.sent_count
                       for rank in self.ring.ranks):  # fmt: skip
                    return
                self.now_ps = min(nic.next_timer_ps() for nic in self.rig.nics)
                assert self.now_ps != NEVER_PS, "no timer is armed and nothing moves"
            for rank in self.ring.ranks:
                rank.nic.advance(self.now_ps)
                rank.progress(self.now_ps)
        raise AssertionError(f"not finished after {STEPS_MAX} steps")

    def _exchange(self) -> bool:
        moved = False
        for port in range(len(self.rig.nics)):
            for burst in self.from_nic[port].bursts():
                self.switch.receive(port, burst, self.now_ps)
                moved = True
        for port, nic in enumerate(self.rig.nics):
            for burst in self.from_switch[port].bursts():
                nic.receive(0, burst, self.now_ps)
                moved = True
        return moved


@pytest.fixture(autouse=True)
def variant() -> None:
    """What is here builds its own networks: the variants of the other scenarios do not matter."""


@pytest.mark.parametrize("gap_policy", ["pass", "hold"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lost", [None, *FRAMES])
def test_every_order_of_arrival_with_one_loss_and_one_duplicate_gives_every_rank_the_sum(
    lost: Frame | None, shape: str, gap_policy: str, seed: int
) -> None:
    stride = STRIDES[gap_policy] if shape == "star" else LEVELS_STRIDE
    tried = list(orders())[seed % stride :: stride]
    network = ForLoop(len(tried) * 10, gap_policy, shape)
    for order in tried:
        for twice in (None, *FRAMES):
            network.run(order, {lost}, {twice})
    network.check()


def test_there_are_as_many_orders_as_combinatorics_says() -> None:
    assert len(set(orders())) == 1680


@given(
    data=st.data(),
    ranks=st.integers(2, 6),
    packets=st.integers(1, 7),
    policy=st.sampled_from(["pass", "hold"]),
    shape=st.sampled_from(sorted(SHAPES)),
)
@settings(max_examples=5 if JIT_DISABLED else 50)
def test_more_ranks_and_packets_with_several_losses_and_duplicates_by_chance(
    data: st.DataObject, ranks: int, packets: int, policy: str, shape: str
) -> None:
    frames = [(rank, packet) for rank in range(ranks) for packet in range(packets)]
    some = st.sets(st.sampled_from(frames), max_size=5)
    order = st.permutations([rank for rank, _ in frames])
    cases = data.draw(st.lists(st.tuples(order, some, some), min_size=1, max_size=6))
    network = ForLoop(len(cases), policy, shape, ranks, packets)
    for case in cases:
        network.run(*case)
    network.check()
