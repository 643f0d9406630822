"""A graph that spells out a leaf-spine fabric behaves as the built-in one; bad graphs are errors that name the node."""

import numpy as np
import pytest

from netreduce.errors import ConfigurationError
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.fabrics import leaf_spine
from netreduce.flowsim.graph import Edge, Graph
from netreduce.flowsim.links import Change
from netreduce.flowsim.pricing import Pricer
from netreduce.flowsim.schemes import SCHEMES

RATE = 12.5e9


def both_ways(pairs: list[tuple[str, str]]) -> list[Edge]:
    return [(a, b, RATE, 1e-6) for x, y in pairs for a, b in ((x, y), (y, x))]


def spelled_out(hosts: int, per_leaf: int, spines: int) -> Graph:
    leaves = range(-(-hosts // per_leaf))
    pairs = [(f"host{h}", f"leaf{h // per_leaf}") for h in range(hosts)]
    pairs += [(f"leaf{leaf}", f"spine{s}") for leaf in leaves for s in range(spines)]
    return Graph([f"host{h}" for h in range(hosts)], both_ways(pairs))


@pytest.mark.parametrize("name", ["ring", "halving", "netreduce", "atp"])
def test_a_spelled_out_leaf_spine_prices_as_the_built_in_one(name):
    graph, built_in = Cluster(spelled_out(12, 4, 4)), Cluster(leaf_spine(12, 4, 4, capacity=RATE))
    price = Pricer(SCHEMES[name], graph).price(12_000_000)
    expected = Pricer(SCHEMES[name], built_in).price(12_000_000)
    assert price.time_s == pytest.approx(expected.time_s, rel=1e-12)
    assert price.ports == expected.ports


def test_its_tree_is_the_built_in_one():
    graph, built_in = spelled_out(12, 4, 3), leaf_spine(12, 4, 3, capacity=RATE)
    members = np.array([0, 1, 2, 5, 9, 9])
    for number in range(3):
        tree, expected = graph.tree(members, number), built_in.tree(members, number)
        named = {graph.links.names[link]: count for link, count in zip(tree.up, tree.up_members, strict=True)}
        assert named == {
            built_in.links.names[link]: count for link, count in zip(expected.up, expected.up_members, strict=True)
        }
        assert tree.ports == expected.ports
        assert tree.latency_s == pytest.approx(expected.latency_s)
        assert tree.levels == expected.levels


def test_hosts_do_not_forward():
    graph = Graph(["a", "b", "c"], both_ways([("a", "s"), ("b", "s"), ("b", "t"), ("c", "t"), ("s", "u"), ("u", "t")]))
    [route] = graph.routes(np.array([0]), np.array([2]))
    assert [graph.links.names[link] for link in route] == ["a->s", "s->u", "u->t", "t->c"]


def test_a_failed_link_is_routed_around_and_a_cut_is_an_error_that_names_both_ends():
    graph = spelled_out(8, 4, 2)
    graph.change([Change("leaf0--spine1", factor=0)])
    routes = graph.routes(np.array([0, 1]), np.array([5, 6]))
    assert graph.links.capacity[routes].min() > 0
    assert graph.links.capacity[graph.tree(np.arange(8), 1).up].min() > 0
    graph.change([Change("leaf0--spine0", factor=0)])
    with pytest.raises(ConfigurationError, match="no way from host0 to host5"):
        graph.routes(np.array([0]), np.array([5]))
    with pytest.raises(ConfigurationError, match="no switch reaches all"):
        graph.tree(np.arange(8), 0)


@pytest.mark.parametrize(
    ("hosts", "edges", "message"),
    [
        (["a"], [], "at least two hosts"),
        (["a", "a"], [], "named once"),
        (["a", "b"], [("a", "s", 1.0, 0.0)], "host b has no link"),
        (["a", "b"], [("a", "b", 1.0, 0.0), ("a", "b", 1.0, 0.0)], "given twice"),
    ],
)
def test_bad_graphs_are_errors_that_name_the_node(hosts, edges, message):
    with pytest.raises(ConfigurationError, match=message):
        Graph(hosts, edges)


def test_a_tree_over_a_one_way_link_is_refused():
    ends = [("a", "s"), ("s", "a"), ("s", "b"), ("b", "t"), ("t", "s")]
    graph = Graph(["a", "b"], [(*pair, 1.0, 0.0) for pair in ends])
    with pytest.raises(ConfigurationError, match="needs the link t->b"):
        graph.tree(np.array([0, 1]), 0)
