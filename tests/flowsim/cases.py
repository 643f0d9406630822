"""Drawn cases for the fluid engine, and how to run one."""

import numpy as np

from netreduce.flowsim.flows import concatenated, coupled
from netreduce.flowsim.simulation import Simulation

Case = dict


def draw_case(generator: np.random.Generator, *, coupled_flows: bool, latencies: str = "equal") -> Case:
    """A small network and flows over random sets of its links.

    `latencies`: "none", "equal" (all flows the same) or "drawn". Members of a coupled flow share no link, so that
    every notion of fairness gives the same rates.
    """
    links = int(generator.integers(3, 14))
    common_s = float(generator.uniform(1e-6, 1e-4)) if latencies == "equal" else 0.0
    flows = []
    for _ in range(int(generator.integers(1, 10 if coupled_flows else 24))):
        reach = int(generator.integers(1, min(links, 10 if coupled_flows else 6) + 1))
        chosen = generator.permutation(links)[:reach].tolist()
        members = [chosen[i : i + 2] for i in range(0, reach, 2)] if coupled_flows else [chosen]
        flows.append(
            {
                "members": members,
                "bytes": int(np.exp(generator.uniform(np.log(1e4), np.log(1e8)))),
                "latency_s": float(generator.uniform(1e-6, 1e-4)) if latencies == "drawn" else common_s,
            }
        )
    return {"capacity": generator.uniform(1e9, 5e10, links).tolist(), "flows": flows}


def run_case(case: Case, *, weight_by_latency: bool = False) -> list[float]:
    """When each flow of the case ends, in seconds. CM02 shares a link in inverse proportion to the flows' latencies."""
    simulation = Simulation(np.array(case["capacity"]))
    batches = []
    for flow in case["flows"]:
        links = np.concatenate(flow["members"]).astype(np.int64)
        weight = 1e-5 / flow["latency_s"] if weight_by_latency else 1.0
        batches.append(coupled(links, flow["bytes"], flow["latency_s"], weight=weight))
    ends = np.full(len(batches), np.nan)

    def ended(positions: np.ndarray) -> None:
        ends[positions] = simulation.now_s

    simulation.start(concatenated(batches), ended)
    simulation.run()
    return ends.tolist()
