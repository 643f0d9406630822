"""Files of other simulators give the networks that they describe; foreign and broken ones an error that names the
line.
"""

import numpy as np
import pytest

from netreduce.errors import ConfigurationError
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.fabrics import leaf_spine
from netreduce.flowsim.formats import astra, htsim, simai
from netreduce.flowsim.pricing import Pricer
from netreduce.flowsim.schemes import SCHEMES

ASTRA = """
# two dimensions
topology: [ Ring, Switch ]
npus_count: [ 4, 2 ]   # 8 NPUs
bandwidth: [ 100.0, 12.5 ] # GB/s
latency: [ 500, 1000.0 ]  # ns
"""

SIMAI = """6 2 2 1 8 H100
4 5 6
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
2 5 2880Gbps 0.000025ms 0
3 5 2880Gbps 0.000025ms 0
0 6 100Gbps 0.0005ms 0
1 6 100Gbps 0.0005ms 0
2 6 100Gbps 0.0005ms 0
3 6 100Gbps 0.0005ms 0
""".replace("6 2 2 1 8", "7 2 2 1 8")

HTSIM_2 = """Nodes 16
Tiers 2
Podsize 16

Tier 0
Downlink_speed_Gbps 100
Radix_Up 4
Radix_Down 4
Downlink_Latency_ns 1000

Tier 1
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 1000
"""

HTSIM_3 = """nodes 16
tiers 3
podsize 4
tier 0
downlink_speed_gbps 100
radix_up 2
radix_down 2
queue_up 100
downlink_latency_ns 500
switch_latency_ns 300
tier 1
downlink_speed_gbps 100
bundle 2
radix_up 2
radix_down 2
tier 2
downlink_speed_gbps 400
radix_down 4
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "network"
        path.write_text(text)
        return path

    return write


def way(graph, source, sink):
    [route] = graph.routes(np.array([source]), np.array([sink]))
    return [graph.links.names[link] for link in route if link >= 0]


def test_an_astra_network_has_a_dimension_of_rings_and_one_of_switches(written):
    graph = astra.read(written(ASTRA))
    assert graph.endpoint_count == 8
    assert way(graph, 0, 1) == ["npu0->npu0.net", "npu0.net->npu1.net", "npu1.net->npu1"]
    assert way(graph, 0, 3) == ["npu0->npu0.net", "npu0.net->npu3.net", "npu3.net->npu3"]
    assert way(graph, 1, 5)[1:3] == ["npu1.net->switch1.1", "switch1.1->npu5.net"]
    price = Pricer(SCHEMES["ring"], Cluster(graph)).price(8_000_000)
    assert price.alpha_s >= 14 * 2e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Ring,", "Torus,"), "topology 'Torus' is none of"),
        (("latency:", "delay:"), "ends without latency"),
        (("[ 4, 2 ]", "[ 4, 2, 2 ]"), "npus_count has 3 elements, topology 2"),
        (("[ 4, 2 ]", "4, 2"), "line 4: npus_count: must be followed by a list"),
        (("12.5", "fast"), "bandwidth is 'fast', not a number"),
        (("[ 4, 2 ]", "[ 1, 1 ]"), "1 NPUs, must be 2"),
    ],
)
def test_a_broken_astra_network_is_an_error_that_says_what_is_wrong(written, change, message):
    with pytest.raises(ConfigurationError, match=message):
        astra.read(written(ASTRA.replace(*change)))


def test_a_simai_network_has_gpus_nvswitches_and_switches(written):
    graph = simai.read(written(SIMAI))
    assert graph.hosts == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert way(graph, 0, 3) == ["gpu0->switch6", "switch6->gpu3"]
    assert "gpu0->nvswitch4" in graph.links.names
    assert Pricer(SCHEMES["netreduce"], Cluster(graph)).price(1_000_000).ports == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("4 5 6", "4 5"), "line 2: names 2 switches"),
        (("7 2 2 1 8 H100", "7 2"), "line 1: must begin with"),
        (("0 6 100Gbps 0.0005ms 0", "0 6 100 0.0005ms 0"), "line 7: '100' is not a rate"),
        (("0 6 100Gbps", "0 9 100Gbps"), "line 7: node 9 is none of the 7 nodes"),
        (("3 6 100Gbps 0.0005ms 0\n", ""), "has 7 links, its first line says 8"),
        (("0 6 100Gbps 0.0005ms 0", "0 6"), "line 7: a link needs"),
        (("1 6 100Gbps", "x 6 100Gbps"), "line 8: node is 'x'"),
    ],
)
def test_a_broken_simai_network_is_an_error_that_names_the_line(written, change, message):
    with pytest.raises(ConfigurationError, match=message):
        simai.read(written(SIMAI.replace(*change)))


def test_a_two_tier_htsim_tree_is_a_leaf_spine(written):
    graph, built_in = htsim.read(written(HTSIM_2)), leaf_spine(16, 4, 4, capacity=12.5e9)
    for name in ("ring", "netreduce"):
        price = Pricer(SCHEMES[name], Cluster(graph)).price(16_000_000)
        expected = Pricer(SCHEMES[name], Cluster(built_in)).price(16_000_000)
        assert price.time_s == pytest.approx(expected.time_s, rel=1e-12)


def test_a_three_tier_htsim_tree_has_pods_bundles_and_cores(written):
    graph = htsim.read(written(HTSIM_3))
    capacity = dict(zip(graph.links.names, graph.links.capacity, strict=True))
    latency = dict(zip(graph.links.names, graph.links.latency_s, strict=True))
    assert capacity["tor0->agg1"] == pytest.approx(25e9)
    assert capacity["agg0->core1"] == pytest.approx(50e9)
    assert latency["host0->tor0"] == pytest.approx(800e-9)
    assert len(way(graph, 0, 15)) == 6
    assert len(way(graph, 0, 3)) == 4
    assert sum(name.endswith("->core3") for name in graph.links.names) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Tiers 2", "Tiers 3"), "2 tiers are described, Tiers says 3"),
        (("Nodes 16", "Nodes 15"), "15 Nodes do not fill"),
        (("Tier 1", "Tier 2"), "line 11: tier 2 comes after 1 tiers"),
        (("Radix_Up 4\n", ""), "tier 0 has no radix_up"),
        (("Podsize 16", "Podsize"), "line 3: must be a name and a number"),
        (("Nodes 16", "Radix_Up 4"), "line 1: Radix_Up before the first Tier"),
        (("Radix_Down 4", "Radix_Down zero"), "line 8: Radix_Down is 'zero'"),
    ],
)
def test_a_broken_htsim_tree_is_an_error_that_names_the_line(written, change, message):
    with pytest.raises(ConfigurationError, match=message):
        htsim.read(written(HTSIM_2.replace(*change)))


def test_binary_and_missing_files_are_errors_that_name_the_file(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    for reader in (astra.read, simai.read, htsim.read):
        with pytest.raises(ConfigurationError, match="binary is not text"):
            reader(path)
        with pytest.raises(ConfigurationError, match="cannot read"):
            reader(tmp_path / "nowhere")


def test_a_ring_is_exported_step_by_step():
    pricer = Pricer(SCHEMES["ring"], Cluster(leaf_spine(4, 4, 1, capacity=12.5e9)))
    lines = htsim.connection_matrix(pricer, 16_000).splitlines()
    assert lines[:3] == ["Nodes 4", "Connections 24", "0->1 id 1 start 0 size 4000"]
    step_ps = round(2_000_000 + 4000 * 1106 / 1024 / 12.5e9 * 1e12)
    assert lines[6] == f"0->1 id 5 start {step_ps} size 4000"
    assert lines[5] == "3->0 id 4 start 0 size 4000"


def test_what_htsim_cannot_replay_is_not_exported():
    pricer = Pricer(SCHEMES["netreduce"], Cluster(leaf_spine(4, 4, 1, capacity=12.5e9)))
    with pytest.raises(ConfigurationError, match="cannot replay NetReduce"):
        htsim.connection_matrix(pricer, 16_000)
