"""The answer: what each scheme would make of an iteration on this cluster, what it takes, and where it does not pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from netreduce.errors import ConfigurationError, NetReduceError
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.plan.kineto import Profile
from netreduce.flowsim.pricing import Price, Pricer
from netreduce.flowsim.schemes import ALL_GATHER, REDUCE_SCATTER, SCHEMES, Scheme
from netreduce.flowsim.traffic import Settings
from netreduce.flowsim.workloads import iteration
from netreduce.flowsim.workloads.models import Model
from netreduce.quantities import show_size, show_time

LITTLE = 0.05
"""A part of the iteration below which faster communication is not worth a switch."""
PCIE = 15.75e9
"""Bytes a second of 16 lanes of PCIe 3.0, the slow end of the paper's range inside a machine."""


@dataclass(frozen=True)
class Option:
    """A scheme's iteration. `price` is of the largest collective; `refusal` says why there is none."""

    scheme: str
    title: str
    communication_s: float
    exposed_s: float
    iteration_s: float
    price: Price | None
    refusal: str = ""

    @property
    def share(self) -> float:
        """Part of the iteration that waits for the network."""
        return self.exposed_s / self.iteration_s if self.iteration_s else 0.0


@dataclass(frozen=True)
class Plan:
    """`base` is what the options are compared with: the measured iteration, or a ring's."""

    subject: str
    cluster: str
    base_name: str
    base_s: float
    base_exposed_s: float
    options: tuple[Option, ...]
    reasons: tuple[str, ...]
    limits: tuple[str, ...]
    assumptions: tuple[str, ...]

    def speedup(self, option: Option) -> float:
        return self.base_s / option.iteration_s


class Pricing:
    """Seconds of collectives on one cluster, each scheme and size simulated once."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.cluster, self.settings = cluster, settings
        self._price = cache(self._simulate)

    def _simulate(self, scheme: Scheme, size_bytes: int) -> Price:
        return Pricer(scheme, self.cluster, self.settings).price(size_bytes)

    def price(self, scheme: Scheme, size_bytes: int) -> Price:
        return self._price(scheme, max(size_bytes, self.settings.item_bytes))

    def seconds(self, scheme: Scheme, kind: str, size_bytes: int) -> float:
        """A collective of `kind` when all-reduces go by `scheme`: a switch that sums can also reduce-scatter (each rank
        keeps its part of the sum), but it does not help an all-gather.
        """
        if kind == "all-reduce" or (kind == "reduce-scatter" and scheme.aggregator is not None):
            return self.price(scheme, size_bytes).time_s
        return self.price(ALL_GATHER if kind == "all-gather" else REDUCE_SCATTER, size_bytes).time_s


def schemes_for(cluster: Cluster) -> list[Scheme]:
    """What is worth comparing: on machines with one worker, hierarchies are the flat schemes."""
    names = ["ring", "tree", "netreduce"] if cluster.inside.workers == 1 else ["ring", "hierarchical", "parallel"]
    return [SCHEMES[name] for name in names]


def plan_model(
    model: Model, cluster: Cluster, settings: Settings, compute_s: float | None = None, *, sharded: bool = False
) -> Plan:
    """A model trained on the cluster with DDP, or FSDP if `sharded`. `compute_s` is an iteration without a network."""
    compute_s = compute_s or model.measured.iteration_s
    settings = replace(settings, item_bytes=model.item_bytes)
    pricing = Pricing(cluster, settings)

    def run(scheme: Scheme) -> iteration.Iteration:
        def by(kind: str) -> iteration.Seconds:
            return lambda size: pricing.seconds(scheme, kind, size)

        if sharded:
            return iteration.fsdp(model, compute_s, by("all-gather"), by("reduce-scatter"))
        return iteration.ddp(model, compute_s, by("all-reduce"))

    sizes = (
        [size for size, _ in iteration.units(model)] if sharded else [b.size_bytes for b in iteration.buckets(model)]
    )
    options = []
    for scheme in schemes_for(cluster):
        try:
            found = run(scheme)
        except NetReduceError as error:
            options.append(Option(scheme.name, scheme.title, 0.0, 0.0, compute_s, None, str(error)))
            continue
        price = pricing.price(scheme, max(sizes))
        options.append(Option(scheme.name, scheme.title, found.communication_s, found.exposed_s, found.total_s, price))
    measured = model.measured
    assumptions = [
        f"computing takes {show_time(compute_s)} an iteration, forward 1/3 of it"
        + (f" ({measured.batch} samples on one {measured.device}: {measured.source})"
           if compute_s == measured.iteration_s else ""),
        f"{model.parameters / 1e6:.1f} M parameters, {show_size(model.gradient_bytes)} of gradients in {len(sizes)} "
        + ("FSDP units" if sharded else "DDP buckets"),
    ]  # fmt: skip
    how = "FSDP" if sharded else "DDP"
    ring = options[0]
    return _plan(
        f"{model.title} with {how}", pricing, "flat ring", ring.iteration_s, ring.exposed_s, options, max(sizes),
        assumptions, sharded=sharded,
    )  # fmt: skip


def plan_profile(profile: Profile, cluster: Cluster, settings: Settings) -> Plan:
    """A profiled step: its collectives priced by each scheme; what was hidden behind computing still is."""
    pricing = Pricing(cluster, settings)
    priced = [c for c in profile.collectives if c.kind in ("all-reduce", "all-gather", "reduce-scatter")]
    kept_s = sum(c.per_step * c.mean_s for c in profile.collectives if c not in priced)
    if not priced:
        raise ConfigurationError("the trace has no all-reduce, all-gather or reduce-scatter to plan for")
    largest = max(priced, key=lambda c: c.size_bytes)
    compute_s = profile.step_s - profile.exposed_s
    options = []
    for scheme in schemes_for(cluster):
        try:
            taken_s = kept_s + sum(c.per_step * pricing.seconds(scheme, c.kind, c.size_bytes) for c in priced)
            price = pricing.price(scheme, largest.size_bytes)
        except NetReduceError as error:
            options.append(Option(scheme.name, scheme.title, 0.0, 0.0, compute_s, None, str(error)))
            continue
        exposed_s = max(0.0, taken_s - profile.hidden_s)
        options.append(Option(scheme.name, scheme.title, taken_s, exposed_s, compute_s + exposed_s, price))
    simulated_s, measured_s = options[0].communication_s, sum(c.per_step * c.mean_s for c in profile.collectives)
    assumptions = [
        f"measured: {profile.steps} steps of {show_time(profile.step_s)}, {show_time(measured_s)} in collectives,"
        f" {show_time(profile.exposed_s)} of it with nothing else running",
        f"a simulated ring takes {show_time(simulated_s)}, {simulated_s / measured_s - 1:+.0%} of the measured time"
        " (which includes waiting for slower ranks)",
        *[f"{c.per_step:g} x {c.kind} of {show_size(c.size_bytes)} a step" for c in profile.collectives[:4]],
        *profile.notes,
    ]
    sharded = any(c.kind == "all-gather" for c in priced)
    return _plan(
        "the profiled job", pricing, "measured", profile.step_s, profile.exposed_s, options, largest.size_bytes,
        assumptions, sharded=sharded,
    )  # fmt: skip


def with_assumptions(plan: Plan, more: Sequence[str]) -> Plan:
    """The plan with further things that were given."""
    return replace(plan, assumptions=(*more, *plan.assumptions))


def _plan(
    subject: str,
    pricing: Pricing,
    base_name: str,
    base_s: float,
    base_exposed_s: float,
    options: Sequence[Option],
    largest: int,
    assumptions: Sequence[str],
    *,
    sharded: bool,
) -> Plan:
    in_network = next(option for option in options if SCHEMES[option.scheme].aggregator is not None)
    return Plan(
        subject,
        pricing.cluster.title,
        base_name,
        base_s,
        base_exposed_s,
        tuple(options),
        tuple(_reasons(options[0], in_network, base_s, base_exposed_s)),
        tuple(_limits(pricing, in_network, base_s, base_exposed_s, largest, sharded=sharded)),
        tuple(assumptions),
    )


def _reasons(ring: Option, chosen: Option, base_s: float, exposed_s: float) -> list[str]:
    """Why the time is what it is."""
    reasons = [
        f"the network holds up {exposed_s / base_s:.0%} of the iteration: no network can gain more than"
        f" {base_s / (base_s - exposed_s):.2f}x" if base_s > exposed_s else "the iteration is all communication"
    ]  # fmt: skip
    if ring.price and chosen.price:
        a, b = ring.price, chosen.price
        reasons.append(
            f"per all-reduce of {show_size(a.size_bytes)}: {a.title} {a.steps} steps and"
            f" {show_time(a.time_s)}, {b.title} {b.steps} and {show_time(b.time_s)}"
        )
        reasons += [f"{price.title}: {price.explain()}" for price in (a, b)]
        reasons.append(f"{b.title} takes a switch with {b.ports} ports and {show_size(b.memory_bytes)} for slots")
    if chosen.refusal:
        reasons.append(f"{chosen.title} is refused: {chosen.refusal}")
    return reasons


def _limits(
    pricing: Pricing, chosen: Option, base_s: float, exposed_s: float, largest: int, *, sharded: bool
) -> list[str]:
    """Where it does not pay."""
    cluster, limits = pricing.cluster, []
    if exposed_s < LITTLE * base_s:
        limits.append(f"here: communication is {exposed_s / base_s:.1%} of the iteration, below {LITTLE:.0%}")
    elif chosen.price and base_s / chosen.iteration_s < 1 + LITTLE:
        limits.append(f"here: {chosen.title} gains {base_s / chosen.iteration_s - 1:+.1%}")
    if sharded:
        limits.append("all-gathers send each byte once to everybody already: a summing switch does not speed them up")
    workers, ranks = cluster.inside.workers, cluster.worker_count
    if workers > 1 and ranks > 2:
        needed = 2 * (workers - 1) / workers * ranks / (ranks - 2)
        has = cluster.inside.capacity / cluster.fabric_capacity()
        limits.append(
            f"with links inside a machine less than {needed:.2f} times as fast as its port (here {has:.2f} times),"
            " a flat ring is faster for large buffers"
        )
        slow = Cluster(cluster.fabric, replace(cluster.inside, capacity=PCIE), cluster.ports_per_machine)
        limits.append(f"with PCIe 3.0 inside: {_ratio(slow, pricing.settings, largest)}")
    return limits


def _ratio(cluster: Cluster, settings: Settings, size_bytes: int) -> str:
    times = [Pricer(SCHEMES[name], cluster, settings).price(size_bytes).time_s for name in ("ring", "parallel")]
    return f"Parallel NetReduce would be {times[0] / times[1]:.2f} times as fast as a flat ring"
