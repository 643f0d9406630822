"""Topology files: what they describe, and the one line that says what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from netreduce.control.description import load
from netreduce.control.topology import Topology, leaf_spine_topology, three_level_topology
from netreduce.errors import ConfigurationError
from netreduce.units import GBPS, MIB, PS_PER_NS, PS_PER_US

PODS = """
title = "two pods"

[defaults]
rate = "25Gbps"
latency = "500ns"
memory = "32MiB"
ring-memory = "8MiB"

[[switch]]
name = "leaf"
count = 3

[[switch]]
name = "spine"
count = 2

[[switch]]
name = "core"
memory = "64MiB"
rings = 3

[[rack]]
switch = "leaf0"
hosts = 3

[[rack]]
switch = "leaf1"
hosts = ["alone"]
rate = "10Gbps"

[[rack]]
switch = "leaf2"
hosts = 2

[[link]]
ends = ["leaf[01]", "spine0"]
rate = "100Gbps"

[[link]]
ends = ["leaf2", "spine1"]
latency = "2us"

[[link]]
ends = ["spine*", "core"]
"""


def described(path: Path, text: str) -> Topology:
    file = path / "topology.toml"
    file.write_text(text)
    return load(file)


def test_a_file_with_defaults_counts_and_patterns_describes_every_switch_host_and_cable(tmp_path: Path) -> None:
    topology = described(tmp_path, PODS)
    assert topology.title == "two pods"
    assert topology.levels == {"leaf0": 1, "leaf1": 1, "leaf2": 1, "spine0": 2, "spine1": 2, "core": 3}
    assert [(host.name, host.switch) for host in topology.hosts] == [
        *[(f"worker{i}", "leaf0") for i in range(3)],
        ("alone", "leaf1"),
        ("worker3", "leaf2"),
        ("worker4", "leaf2"),
    ]
    assert {host.rate_bps for host in topology.hosts} == {25 * GBPS, 10 * GBPS}
    cables = {cable.ends: (cable.rate_bps, cable.delay_ps) for cable in topology.cables}
    assert cables["leaf0", "spine0"] == (100 * GBPS, 500 * PS_PER_NS)
    assert cables["leaf2", "spine1"] == (25 * GBPS, 2 * PS_PER_US)
    assert len(cables) == 5
    memory = {switch.name: (switch.memory_bytes, switch.ring_memory_bytes) for switch in topology.switches}
    assert memory["leaf0"] == (32 * MIB, 8 * MIB)
    assert memory["core"] == (64 * MIB, 8 * MIB)
    assert topology.ports["spine0"] == ("leaf0", "leaf1", "core")
    assert topology.ports["leaf0"] == ("worker0", "worker1", "worker2", "spine0")


def test_the_shapes_that_code_asks_for_have_the_levels_that_their_names_say() -> None:
    assert set(leaf_spine_topology([3, 1], 2).levels.values()) == {1, 2}
    topology = three_level_topology([[2, 1], [3]], 2, 2)
    assert topology.levels["core1"] == 3
    assert topology.ports["spine2"] == ("leaf2", "core0", "core1")
    assert topology.hosts[-1].switch == "leaf2"


RACK = '[[switch]]\nname = "a"\n[[rack]]\nswitch = "a"\nhosts = ["h0", "h1"]\n'
TWO = RACK + '[[switch]]\nname = "b"\n[[rack]]\nswitch = "b"\nhosts = ["h2"]\n'
UP = '[[switch]]\nname = "s"\n'


def link(one: str, other: str, more: str = "") -> str:
    return f'[[link]]\nends = ["{one}", "{other}"]\n{more}\n'


BAD = {
    "loop": (TWO + link("a", "b"), "link a--b: both switches are of level 1"),
    "itself": (TWO + link("a", "a"), "link a--a: joins a switch with itself"),
    "twice": (TWO + UP + link("a", "s") * 2 + link("b", "s"), "link a--s: is listed 2 times"),
    "two racks": (TWO.replace("h2", "h1"), "host h1: is in two racks, of a and b"),
    "rate of zero": (TWO + UP + link("a", "s", 'rate = "0Gbps"'), "link a--s: '0Gbps' must be above zero"),
    "rack's rate": (RACK + 'rate = "fast"\n', "rack of a: 'fast' is not a rate"),
    "no such switch": (TWO + link("a", "c"), "link a--c: there is no switch 'c'"),
    "no such rack": (RACK.replace('switch = "a"', 'switch = "x"'), "host h0: its switch 'x' is not listed"),
    "unconnected": (RACK + UP, "switch s: no cable leads from it to a rack"),
    "same name": (RACK + RACK, "switch a: is listed twice"),
    "host like switch": (RACK.replace("h1", "a"), "host a: a switch has the same name"),
    "empty rack": (RACK.replace('["h0", "h1"]', "0"), "rack of a: it has no hosts"),
    "memory": (RACK + UP + 'memory = "0MB"\n' + link("a", "s"), "switch s: '0MB' must be above zero"),
    "rings": (RACK + UP + "rings = 0\n" + link("a", "s"), "switch s: rings is 0"),
    "unknown field": (RACK + 'speed = "1Gbps"\n', "unknown field `speed` - at `$.rack[0]`"),
    "type": (RACK.replace('"h0"', "7"), "`$.rack[0].hosts"),
    "syntax": (RACK + "hosts = \n" + RACK, "at line 6"),
    "nothing": ("", "needs at least one switch and one rack"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_that_names_file_entry_and_reason(case: str, tmp_path: Path) -> None:
    text, reason = BAD[case]
    with pytest.raises(ConfigurationError) as error:
        described(tmp_path, text)
    words = str(error.value)
    assert words.startswith(str(tmp_path / "topology.toml"))
    assert reason in words
    assert "\n" not in words


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*none.toml: No such file"):
        load(tmp_path / "none.toml")
