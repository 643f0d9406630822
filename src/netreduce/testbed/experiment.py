"""One all-reduce on a testbed: what it took, what crossed each link, and that every result is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from netreduce.errors import NetReduceError
from netreduce.fabric import Line
from netreduce.testbed.expected import closed_form_ps, wire_bytes
from netreduce.testbed.hardware import WAYS, Case
from netreduce.testbed.network import Network
from netreduce.units import PS_PER_S

PATTERN = 251
"""Elements repeat after so many: a prime, so that no cut falls on it, and small, so that float32 sums are exact."""
STEPS_PER_REPORT = 256
LIMIT_PS = 1_000 * PS_PER_S

Report = Callable[[float], None]
"""Called now and then with the share of the work that is done, from 0 to 1."""


class LinkUse(msgspec.Struct, frozen=True):
    """One direction of a link: `bytes` are those of its frames without preamble, FCS and gap, which occupy it too."""

    name: str
    kind: str
    rate_bps: int
    frames: int
    bytes: int
    utilisation: float
    peak_queue_bytes: int


class Result(msgspec.Struct, frozen=True):
    """What one all-reduce did. Bandwidths are in bytes a second, as nccl-tests defines them."""

    way: str
    machines: int
    gpus: int
    inside_bps: int
    size_bytes: int
    time_s: float
    algbw: float
    busbw: float
    closed_form_s: float | None
    frame_hops: int
    dropped_frames: int
    resent_packets: int
    links: tuple[LinkUse, ...]

    @property
    def workers(self) -> int:
        return self.machines * self.gpus


class Experiment:
    """`case` on a network of its own. Making it allocates the arrays; `run` may be called once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.network = Network(case.hardware, case.way)
        base = np.resize(np.arange(PATTERN, dtype=np.float32), case.size_bytes // 4)
        self._base = base
        self._arrays = [base + np.float32(rank) for rank in range(case.hardware.workers)]

    def run(self, report: Report | None = None) -> Result:
        """All-reduce once. Raises `NetReduceError` if it fails or a result is wrong."""
        simulator = self.network.simulator
        operations = [
            engine.all_reduce(array) for engine, array in zip(self.network.engines, self._arrays, strict=True)
        ]
        due_bytes = wire_bytes(self.case)
        steps = 0

        def done() -> bool:
            nonlocal steps
            steps += 1
            if report is not None and steps % STEPS_PER_REPORT == 0:
                report(min(sum(int(line.row.bytes) for line in simulator.lines) / due_bytes, 0.99))
            return all(operation.done for operation in operations)

        simulator.run_until(done, limit_ps=LIMIT_PS)
        for operation in operations:
            if operation.error is not None:
                raise operation.error
        self._check()
        return self._result()

    def _check(self) -> None:
        workers = self.case.hardware.workers
        total = np.float32(workers) * self._base + np.float32(workers * (workers - 1) // 2)
        for rank, array in enumerate(self._arrays):
            moved = self.case.way == "plain"
            expected = self._base + np.float32((rank - 1) % workers) if moved else total
            wrong = int(np.count_nonzero(array != expected))
            if wrong:
                raise NetReduceError(f"{self.case.way}: {wrong} of {array.size} elements of rank {rank} are wrong")

    def _result(self) -> Result:
        case, simulator = self.case, self.network.simulator
        hardware = case.hardware
        time_s = simulator.now_ps / PS_PER_S
        closed_ps = closed_form_ps(case)
        algbw = case.size_bytes / time_s
        return Result(
            way=case.way,
            machines=hardware.machines,
            gpus=hardware.gpus,
            inside_bps=hardware.inside_bps,
            size_bytes=case.size_bytes,
            time_s=time_s,
            algbw=algbw,
            busbw=algbw * 2 * (hardware.workers - 1) / hardware.workers if WAYS[case.way].scheme else algbw,
            closed_form_s=None if closed_ps is None else closed_ps / PS_PER_S,
            frame_hops=sum(int(line.row.frames) for line in simulator.lines),
            dropped_frames=sum(line.counters()["egress_dropped_frames"] for line in simulator.lines),
            resent_packets=sum(nic.counters()["retransmitted_pkts"] for nic in self.network.nics),
            links=tuple(self._links()),
        )

    def _links(self) -> Iterator[LinkUse]:
        simulator = self.network.simulator
        for line in simulator.lines:
            yield LinkUse(
                name=line.name,
                kind=kind_of(line),
                rate_bps=int(line.row.rate_bps),
                frames=int(line.row.frames),
                bytes=int(line.row.bytes),
                utilisation=line.utilisation(simulator.now_ps),
                peak_queue_bytes=int(line.egress.state[0].peak_bytes),
            )


def kind_of(line: Line) -> str:
    """Such as ``worker to machine``: the line's ends without their numbers."""
    return " to ".join(node.name.rstrip("0123456789") for node in (line.sender, line.receiver))
