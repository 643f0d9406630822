"""Machines with workers inside and network ports outside, on a fabric: routes and aggregation trees between workers.

Workers (GPUs) are numbered machine by machine. Within a machine each worker has one link into a switch that never
blocks and one out of it (NVSwitch, or the PCIe root); between machines each worker uses one of its machine's ports.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.flowsim.fabrics import AggregationTree, Fabric
from netreduce.flowsim.flows import Floats, Ints
from netreduce.flowsim.links import LinkBuilder, Links


@dataclass(frozen=True)
class Inside:
    """A machine's inside: `workers`, their link's `capacity` in bytes a second each way, and the latency of a hop."""

    workers: int = 1
    capacity: float = 100e9
    latency_s: float = 0.5e-6


class Cluster:
    """`fabric.endpoint_count` ports, `ports_per_machine` of them a machine. Link indices: inside first, then the
    fabric.
    """

    def __init__(self, fabric: Fabric, inside: Inside | None = None, ports_per_machine: int = 1) -> None:
        self.fabric, self.inside, self.ports_per_machine = fabric, inside or Inside(), ports_per_machine
        workers = self.inside.workers
        if workers % ports_per_machine or fabric.endpoint_count % ports_per_machine:
            raise ConfigurationError(
                f"{ports_per_machine} ports a machine must divide its {workers} workers and the fabric's"
                f" {fabric.endpoint_count} endpoints"
            )
        self.machine_count = fabric.endpoint_count // ports_per_machine
        self.worker_count = self.machine_count * workers
        builder, hop_s = LinkBuilder(), self.inside.latency_s
        ends = [(f"gpu{i}", f"inside{i // workers}") for i in range(self.worker_count if workers > 1 else 0)]
        self._into = builder.add((f"{gpu}->{switch}" for gpu, switch in ends), self.inside.capacity, hop_s)
        self._out_of = builder.add((f"{switch}->{gpu}" for gpu, switch in ends), self.inside.capacity, hop_s)
        inner = builder.build()
        self.offset = len(inner)
        self.links = Links(
            [*inner.names, *fabric.links.names],
            np.concatenate((inner.capacity, fabric.links.capacity)),
            np.concatenate((inner.latency_s, fabric.links.latency_s)),
        )

    @property
    def title(self) -> str:
        machines = f"{self.machine_count} x {self.inside.workers} workers"
        return f"{machines} on a {self.fabric.title}"

    def endpoint(self, worker: Ints) -> Ints:
        """The fabric's endpoint of each worker."""
        machine, place = np.divmod(worker, self.inside.workers)
        return machine * self.ports_per_machine + place * self.ports_per_machine // self.inside.workers

    def routes(self, source: Ints, sink: Ints) -> Ints:
        """Routes between different workers: int64[flows, hops] padded with -1."""
        near = source // self.inside.workers == sink // self.inside.workers
        if not near.any():
            return self._shifted(self.fabric.routes(self.endpoint(source), self.endpoint(sink)))
        inside = np.stack((self._into + source, self._out_of + sink), axis=1)
        if near.all():
            return inside
        away = np.flatnonzero(~near)
        outside = self._shifted(self.fabric.routes(self.endpoint(source[away]), self.endpoint(sink[away])))
        routes = np.full((len(source), outside.shape[1]), -1, np.int64)
        routes[:, :2] = inside
        routes[away] = outside
        return routes

    def _shifted(self, links: Ints) -> Ints:
        return np.where(links >= 0, links + self.offset, -1)

    def latency_s(self, routes: Ints) -> Floats:
        """The sum of the links' latencies of each route."""
        return np.where(routes >= 0, self.links.latency_s[routes], 0.0).sum(axis=1)

    def forwarding_s(self, routes: Ints, frame_bytes: int) -> Floats:
        """How long a frame's arrival takes on all links of each route but the first."""
        later = routes[:, 1:]
        return np.where(later >= 0, frame_bytes / self.links.capacity[later], 0.0).sum(axis=1)

    def tree(self, workers: Ints, number: int) -> AggregationTree:
        """The aggregation tree of ring `number` with one connection per member (int64[members])."""
        tree = self.fabric.tree(self.endpoint(workers), number)
        return replace(tree, up=tree.up + self.offset, down=tree.down + self.offset)

    def port_links(self, worker: Ints) -> tuple[Ints, Ints]:
        """The links into and the links out of the network port that each worker uses."""
        endpoint = self.endpoint(worker)
        other = (endpoint + 1) % self.fabric.endpoint_count
        return self.fabric.routes(other, endpoint)[:, -1] + self.offset, (
            self.fabric.routes(endpoint, other)[:, 0] + self.offset
        )

    def fabric_capacity(self) -> float:
        """The capacity of the fabric's first link, bytes a second: of all of them where they are alike."""
        return float(self.links.capacity[self.offset])

    def fastest(self) -> float:
        """The capacity of the fastest link of a worker or port, bytes a second: the bound on any busbw."""
        return float(self.links.capacity.max())
