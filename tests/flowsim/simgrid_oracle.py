"""Runs drawn cases in SimGrid (Debian's python3-simgrid, LGPL, an independent implementation) and prints when each
flow ends.

Usage: simgrid_oracle.py flows|coupled < cases.json. A case is {"capacity": [...], "flows": [{"members": [[link, ...],
...], "bytes": b, "latency_s": s}, ...]}; all cases run one after the other in one engine, each on links of its own.
`flows` uses the network model CM02 (LV08, the default, is TCP: 13 times the latency); `coupled` uses ptask_L07, where
the members of a flow advance at one rate.
"""

import json
import sys

from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor

CM02 = ["--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0", "--cfg=network/crosstraffic:0"]
L07 = ["--cfg=host/model:ptask_L07", "--cfg=host/solver:bmf", "--cfg=network/crosstraffic:0"]
QUIET = ["--log=root.thresh:critical"]
FAST = 1e12
UNIT = 1e6
"""Coupled cases run in megabytes: SimGrid's solver for them (BMF) does not converge on numbers as large as bytes a
second.
"""
PRECISE = ["--cfg=maxmin/precision:1e-9", "--cfg=surf/precision:1e-12"]


def build(zone, index, case, unit):
    """Hosts and routes of one case: each member of each flow gets two hosts of its own and the route that was drawn."""
    links = [zone.create_link(f"c{index}l{i}", rate / unit).seal() for i, rate in enumerate(case["capacity"])]
    flows = []
    for number, flow in enumerate(case["flows"]):
        pairs = []
        for k, route in enumerate(flow["members"]):
            source, sink = (zone.create_host(f"c{index}f{number}m{k}{end}", 1e9).seal() for end in "ab")
            way = [LinkInRoute(links[i]) for i in route]
            if flow["latency_s"]:
                delay = zone.create_link(f"c{index}f{number}m{k}d", FAST).set_latency(flow["latency_s"]).seal()
                way.insert(0, LinkInRoute(delay))
            zone.add_route(source.netpoint, sink.netpoint, None, None, way, False)
            pairs.append((source, sink))
        flows.append((pairs, flow["bytes"]))
    return flows


def run_flows(flows):
    start = Engine.clock
    comms = [Comm.sendto_async(*pairs[0], size) for pairs, size in flows]
    Comm.wait_all(comms)
    return [comm.finish_time - start for comm in comms]


def run_coupled(flows):
    start = Engine.clock
    ends = [None] * len(flows)

    def task(number, pairs, size):
        hosts = [host for pair in pairs for host in pair]
        volume = [0.0] * len(hosts) ** 2
        for k in range(len(pairs)):
            volume[2 * k * len(hosts) + 2 * k + 1] = size / UNIT
        this_actor.parallel_execute(hosts, [0.0] * len(hosts), volume)
        ends[number] = Engine.clock - start

    actors = [Actor.create(f"t{n}", flows[n][0][0][0], task, n, *flow) for n, flow in enumerate(flows)]
    for actor in actors:
        actor.join()
    return ends


def main():
    mode = sys.argv[1]
    engine = Engine(["oracle", *(CM02 if mode == "flows" else L07), *QUIET, *PRECISE])
    cases = json.load(sys.stdin)
    zone = NetZone.create_full_zone("all")
    built = [build(zone, index, case, UNIT if mode == "coupled" else 1) for index, case in enumerate(cases)]
    controller = zone.create_host("controller", 1e9).seal()
    zone.seal()
    results = []

    def control():
        for flows in built:
            results.append((run_flows if mode == "flows" else run_coupled)(flows))

    Actor.create("control", controller, control)
    engine.run()
    json.dump(results, sys.stdout)


main()
