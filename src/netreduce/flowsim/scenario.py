"""Several jobs, background traffic and stragglers on one cluster, event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.flowsim.aggregators import atp
from netreduce.flowsim.checks import StalledError
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.flows import Ints, routed
from netreduce.flowsim.programs import Matcher, Started, supersteps
from netreduce.flowsim.schemes import SCHEMES, Scheme
from netreduce.flowsim.simulation import Simulation
from netreduce.flowsim.traffic import Settings, Traffic

LOCKSTEP_ABOVE = 256
"""Ranks above which a job's schedules run in lockstep, instead of each rank at its own pace."""


@dataclass(frozen=True)
class Job:
    """`repeats` all-reduces of `size_bytes` by `scheme` among `workers` (int64[ranks]), `pause_s` apart, from
    `start_s`.

    delays_s: how much later single ranks are ready for each all-reduce, by rank.
    """

    name: str
    scheme: Scheme
    workers: Ints
    size_bytes: int
    start_s: float = 0.0
    repeats: int = 1
    pause_s: float = 0.0
    delays_s: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Background:
    """`size_bytes` from one worker to another, from `start_s`; again and again while jobs run if `repeat`."""

    source: int
    sink: int
    size_bytes: float
    start_s: float = 0.0
    repeat: bool = False


@dataclass(frozen=True)
class JobResult:
    """When each all-reduce of a job began (first rank ready) and ended, in seconds."""

    name: str
    scheme: str
    ranks: int
    size_bytes: int
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def times_s(self) -> list[float]:
        return [end - start for start, end in zip(self.starts_s, self.ends_s, strict=True)]


@dataclass(frozen=True)
class Outcome:
    """Results in the order of the jobs and of the background flows (end of each one's first transfer)."""

    jobs: tuple[JobResult, ...]
    background_ends_s: tuple[float, ...]
    busiest: tuple[tuple[str, float], ...]
    """The five links that were busy for the largest part of the run, with that part."""


class _Runner:
    """One job: starts flows as its schedules ask for them, until the last repetition has ended."""

    def __init__(
        self, job: Job, traffic: Traffic, simulation: Simulation, notes: list[str], progress: Callable[[], None]
    ) -> None:
        self.progress = progress
        self.job, self.traffic, self.simulation = job, traffic, simulation
        self.lockstep = traffic.world_size > LOCKSTEP_ABOVE
        self.starts_s: list[float] = []
        self.ends_s: list[float] = []
        self.notes = notes + traffic.admission.notes

    @property
    def finished(self) -> bool:
        return len(self.ends_s) == self.job.repeats

    def begin(self) -> None:
        """Start the next all-reduce now."""
        self.starts_s.append(self.simulation.now_s)
        matcher = self.traffic.matcher(self.job.size_bytes, every_rank=not self.lockstep)
        delays = self.job.delays_s
        if self.lockstep:
            steps = supersteps(matcher)
            last_s = self.simulation.now_s + max(delays.values(), default=0.0)
            self.simulation.call_at(last_s, partial(self._step, matcher, steps))
            return
        prompt = [rank for rank in range(self.traffic.world_size) if rank not in delays]
        for rank, delay_s in delays.items():
            self.simulation.call_at(self.simulation.now_s + delay_s, partial(self._advance, matcher, [rank]))
        self._advance(matcher, prompt)

    def _step(self, matcher: Matcher, steps: Iterator[Started]) -> None:
        started = next(steps, None)
        if started is None:
            self._end()
            return
        flows = self.traffic.flows(started, matcher.period)
        left = len(flows)

        def ended(positions: Ints) -> None:
            nonlocal left
            left -= len(positions)
            if not left:
                self._step(matcher, steps)

        self.simulation.start(flows, ended)

    def _advance(self, matcher: Matcher, ready: Sequence[int]) -> None:
        started = matcher.advance(ready)
        if matcher.finished:
            self._end()
        if not started:
            return

        def ended(positions: Ints) -> None:
            transfers = len(started.transfers)
            done = Started(
                [started.transfers[i] for i in positions if i < transfers],
                [started.aggregations[i - transfers] for i in positions if i >= transfers],
            )
            self._advance(matcher, matcher.complete(done))

        self.simulation.start(self.traffic.flows(started, matcher.period), ended)

    def _end(self) -> None:
        self.ends_s.append(self.simulation.now_s)
        self.progress()
        if not self.finished:
            self.simulation.call_at(self.simulation.now_s + self.job.pause_s, self.begin)

    def result(self) -> JobResult:
        return JobResult(
            self.job.name,
            self.traffic.scheme.title,
            self.traffic.world_size,
            self.job.size_bytes,
            tuple(self.starts_s),
            tuple(self.ends_s),
            tuple(self.notes),
        )


def simulate(
    cluster: Cluster,
    jobs: Sequence[Job],
    background: Sequence[Background] = (),
    settings: Settings | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run everything to its end; `progress` is called whenever an all-reduce of a job is over.

    Raises AdmissionError when switches cannot hold a job's rings, and StalledError for what can never end.
    """
    settings = settings or Settings()
    simulation = Simulation(cluster.links.capacity)
    runners = _admitted(cluster, jobs, settings, simulation, progress)
    for runner in runners:
        simulation.call_at(runner.job.start_s, runner.begin)
    ends_s = [np.nan] * len(background)
    for number, flow in enumerate(background):
        _start_background(cluster, flow, settings, simulation, runners, number, ends_s)
    simulation.run()
    for runner in runners:
        if not runner.finished:
            raise StalledError(f"job {runner.job.name!r} waits for ranks that never come: its schedules do not match")
    end_s = max(simulation.now_s, 1e-30)
    busy = np.zeros(len(cluster.links))
    np.divide(simulation.fluid.carried_bytes, cluster.links.capacity, out=busy, where=cluster.links.capacity > 0)
    worst = np.argsort(-busy, kind="stable")[:5]
    busiest = tuple((cluster.links.names[i], float(busy[i] / end_s)) for i in worst.tolist())
    return Outcome(tuple(runner.result() for runner in runners), tuple(ends_s), busiest)


def _start_background(
    cluster: Cluster,
    flow: Background,
    settings: Settings,
    simulation: Simulation,
    runners: Sequence[_Runner],
    number: int,
    ends_s: list[float],
) -> None:
    routes = cluster.routes(np.array([flow.source]), np.array([flow.sink]))
    tax = 1.0 if routes[0, 0] < cluster.offset else settings.packets.tax()
    batch = routed(routes, flow.size_bytes, cluster.latency_s(routes), use=tax)

    def ended(_: Ints) -> None:
        if np.isnan(ends_s[number]):
            ends_s[number] = simulation.now_s
        if flow.repeat and not all(runner.finished for runner in runners):
            simulation.start(batch, ended)

    simulation.call_at(flow.start_s, lambda: simulation.start(batch, ended))


def _admitted(
    cluster: Cluster,
    jobs: Sequence[Job],
    settings: Settings,
    simulation: Simulation,
    progress: Callable[[], None],
) -> list[_Runner]:
    """Each job with what its switches give it, in the order of the jobs: they share the switches' memory."""
    if len({job.name for job in jobs}) < len(jobs):
        raise ConfigurationError("jobs need different names")
    memory: Counter[str] = Counter()
    streaming: set[str] = set()
    atp_jobs = sum(job.scheme.name == "atp" for job in jobs)
    runners = []
    for job in jobs:
        scheme, notes = job.scheme, []
        if scheme.name == "atp" and atp_jobs > 1:
            aggregator = atp(other_jobs=atp_jobs - 1)
            scheme = replace(scheme, aggregator=aggregator)
            notes.append(f"{aggregator.collision:.0%} of the packets collide with other jobs'")
        if scheme.name == "sharp":
            switches = set(cluster.tree(job.workers, 0).ports)
            if switches & streaming:
                # A switch has one active streaming tree; NCCL uses a ring where it gets none.
                scheme = SCHEMES["ring"]
                notes.append(f"{min(switches & streaming)} has a streaming tree already: falls back to a ring")
            streaming |= switches
        traffic = Traffic(scheme, cluster, settings, job.workers, memory)
        runners.append(_Runner(job, traffic, simulation, notes, progress))
    return runners
