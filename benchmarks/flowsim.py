"""How fast the flow simulator is, in CPU seconds of one core: a shared machine's clock measures its neighbours."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np

from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.description import ClusterFields, Description
from netreduce.flowsim.fabrics import leaf_spine
from netreduce.flowsim.flows import routed
from netreduce.flowsim.pricing import Pricer
from netreduce.flowsim.schemes import SCHEMES
from netreduce.flowsim.simulation import Simulation
from netreduce.flowsim.sweep import points, run

SIX = ("ring", "tree", "halving", "hierarchical", "netreduce", "parallel")


def timed(what: str, work: Callable[[], object]) -> None:
    begin = time.process_time()
    work()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{what:<72} {time.process_time() - begin:7.2f} s, at most {peak_mb:.0f} MB so far")


def ring() -> None:
    cluster = Cluster(leaf_spine(1024, 32, 32, capacity=12.5e9))
    Pricer(SCHEMES["ring"], cluster).price(100_000_000)


def irregular() -> None:
    cluster = Cluster(leaf_spine(1024, 32, 32, capacity=12.5e9))
    sink = np.random.default_rng(1).permutation(1024)
    source = np.flatnonzero(sink != np.arange(1024))
    routes = cluster.routes(source, sink[source])
    simulation = Simulation(cluster.links.capacity)
    simulation.start(routed(routes, 97656.0 * (1 + source / 1024)), lambda _: None)
    simulation.run()


def sweep() -> None:
    ranks = [32 << doubling for doubling in range(9)]
    base = Description(cluster=ClusterFields(gpus=8))
    assert sum(result.price is not None for result in run(points(SIX, ranks, [100_000_000], base))) == 54


def main() -> None:
    timed("ring, 1,024 workers, 100 MB, two-level fat tree", ring)
    timed("1,024 flows of different sizes on random routes", irregular)
    timed("sweep of six schemes, 32 to 8,192 workers, 54 points", sweep)


if __name__ == "__main__":
    main()
