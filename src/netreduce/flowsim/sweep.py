"""Many prices at once: points of a sweep, each independent of the others, through any standard executor."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from msgspec.structs import replace

from netreduce import quantities
from netreduce.errors import ConfigurationError, NetReduceError
from netreduce.flowsim.closed_forms import closed_form_s
from netreduce.flowsim.description import Description, cluster_of, settings_of
from netreduce.flowsim.pricing import Price, Pricer
from netreduce.flowsim.schemes import scheme_named


@dataclass(frozen=True)
class Point:
    """One price to be found: a scheme, a size in bytes, and the description of a cluster and its settings."""

    scheme: str
    size_bytes: int
    description: Description

    @property
    def ranks(self) -> int:
        return self.description.cluster.machines * self.description.cluster.gpus

    @property
    def effort(self) -> int:
        """Grows with the time that the point takes, for progress and order only."""
        alike = scheme_named(self.scheme).period(self.ranks, self.description.cluster.gpus) < self.ranks
        return self.ranks if alike else 16 * self.ranks


@dataclass(frozen=True)
class Result:
    """A point's price, or what refused it; `closed_s` is the closed form's time where one holds."""

    point: Point
    price: Price | None
    closed_s: float | None = None
    refusal: str = ""

    def row(self) -> dict[str, Any]:
        """Plain values for JSON and CSV: times in seconds, sizes in bytes, rates in bytes a second."""
        cluster, settings = self.point.description.cluster, self.point.description.settings
        row: dict[str, Any] = {
            "scheme": self.point.scheme,
            "ranks": self.point.ranks,
            "gpus": cluster.gpus,
            "size_bytes": self.point.size_bytes,
            "fabric": cluster.fabric,
            "port": cluster.port,
            "inside": cluster.inside,
            "step": settings.step,
            "time_s": None,
        }
        if self.price is None:
            return row | {"explain": self.refusal}
        price = asdict(self.price)
        for name in ("scheme", "title", "ranks", "size_bytes", "notes", "bus_factor"):
            price.pop(name)
        derived = {"algbw": self.price.algbw, "busbw": self.price.busbw, "closed_s": self.closed_s}
        return row | price | derived | {"explain": self.price.explain()}


def solve(point: Point) -> Result:
    """The result of one point. A scheme that the cluster's switches refuse is a result, too."""
    scheme = scheme_named(point.scheme)
    try:
        cluster, settings = cluster_of(point.description), settings_of(point.description)
        with _without_collector():
            price = Pricer(scheme, cluster, settings).price(point.size_bytes)
    except NetReduceError as error:
        return Result(point, None, refusal=str(error))
    closed_s = None if point.description.change else closed_form_s(scheme, cluster, point.size_bytes, settings)
    return Result(point, price, closed_s)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Thousands of running schedules hold millions of objects and no cycles: looking for some doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def points(
    schemes: Sequence[str],
    ranks: Sequence[int],
    sizes: Sequence[int],
    base: Description,
    steps: Sequence[str] = (),
    insides: Sequence[str] = (),
) -> list[Point]:
    """The product of all lists; an empty one leaves what `base` says. Raises ConfigurationError for what makes no
    sense.
    """
    found = []
    gpus = base.cluster.gpus
    for scheme in schemes:
        scheme_named(scheme)
    for count in ranks:
        if count % gpus or count < 2:
            raise ConfigurationError(f"{count} ranks are not at least two workers on machines with {gpus} each")
    for text in (base.cluster.port, base.cluster.uplink or base.cluster.port, base.cluster.inside, *insides):
        quantities.rate(text)
    for text in (base.cluster.latency, base.cluster.inside_latency, base.settings.step, *steps):
        quantities.duration(text)
    for count, size, step, inside, scheme in itertools.product(
        ranks, sizes, steps or [base.settings.step], insides or [base.cluster.inside], schemes
    ):
        cluster = replace(base.cluster, machines=count // gpus, inside=inside)
        settings = replace(base.settings, step=step)
        found.append(Point(scheme, size, replace(base, cluster=cluster, settings=settings)))
    return found


def run(todo: Sequence[Point], executor: Executor | None = None) -> Iterator[Result]:
    """Results as they come. `executor` is any of concurrent.futures, or one of the same interface for more machines."""
    largest_first = sorted(todo, key=lambda point: -point.effort)
    if executor is None:
        yield from map(solve, largest_first)
        return
    futures: list[Future[Result]] = [executor.submit(solve, point) for point in largest_first]
    for future in as_completed(futures):
        yield future.result()
