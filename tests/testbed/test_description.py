"""Testbeds from files: what is shipped can be read, and mistakes are told in one line before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from netreduce.errors import ConfigurationError
from netreduce.testbed.description import is_testbed, load
from netreduce.testbed.hardware import Middlebox

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
GOOD = """
[testbed]
machines = 2
gpus = 2
inside = "150GB/s"
[[run]]
algorithms = ["ring", "parallel"]
sizes = ["64KiB", "1MB"]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "testbed.toml"
    path.write_text(text)
    return path


def test_all_combinations_of_a_run_are_planned_in_order(tmp_path: Path) -> None:
    text = GOOD + 'machines = [2, 4]\ninside = ["20GB/s", "40GB/s"]\n'
    (cases,) = load(written(tmp_path, text)).runs
    assert len(cases) == 2 * 2 * 2 * 2
    assert [(case.way, case.size_bytes) for case in cases[:3]] == [
        ("ring", 65536),
        ("parallel", 65536),
        ("ring", 10**6),
    ]
    assert [case.hardware.machines for case in cases] == [2] * 8 + [4] * 8
    assert [case.hardware.inside_bps for case in cases[::4]] == [160 * 10**9, 320 * 10**9] * 2


def test_the_shipped_testbeds_are_the_papers() -> None:
    six = load(EXAMPLES / "testbed-six-machines.toml").runs[0][0].hardware
    assert (six.machines, six.gpus, six.port_bps) == (6, 1, 100 * 10**9)
    assert (six.geometry.message_window, six.geometry.message_packets, six.geometry.path_mtu) == (2, 170, 1024)
    assert six.middlebox == Middlebox(20_000, 160_000)
    assert 2 * six.between_ps == 5_700_000
    assert 2 * (six.between_ps + six.detour_ps) == 6_300_000
    four = load(EXAMPLES / "testbed-four-by-eight.toml").runs[2][0].hardware
    assert (four.machines, four.gpus, four.port_bps, four.inside_bps) == (4, 8, 100 * 10**9, 1200 * 10**9)
    assert four.between_ps == six.between_ps


def test_the_kind_of_a_file_is_told_by_its_tables(tmp_path: Path) -> None:
    assert is_testbed(written(tmp_path, GOOD))
    assert not is_testbed(written(tmp_path, "[cluster]\nmachines = 4\n"))
    assert not is_testbed(written(tmp_path, "[testbed"))
    assert not is_testbed(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("machines = 2", 'machines = 2\nport = "0Gbps"', "testbed: port: '0Gbps' must be above zero"),
        ("machines = 2", 'machines = 2\nport = "fast"', "testbed: port: 'fast' is not a rate"),
        ("machines = 2", 'machines = 2\ndelay = "soon"', "testbed: delay: 'soon' is not a duration"),
        ("machines = 2", "machines = 0", "testbed: machines x gpus: 0 x 2 are not at least two workers"),
        ("machines = 2", "machines = 40", "testbed: machines x gpus: 80 workers, up to 64 are possible here"),
        ('inside = "150GB/s"', "", "testbed: inside: 2 workers a machine need a bandwidth"),
        ('inside = "150GB/s"', 'inside = "0GB/s"', "testbed: inside: '0GB/s' must be above zero"),
        ("gpus = 2", "gpu = 2", "unknown field `gpu`"),
        ('"ring", ', '"quantum", ', "run 0: algorithm 'quantum': there are ring, leaders, netreduce"),
        ('"64KiB"', '"3B"', "run 0: size: 3 bytes are not one or more float32"),
        ('"64KiB"', '"100GB"', "run 0: size: 4 workers with 100000000000 bytes hold 400.0 GB, up to 16 GB"),
        ('"64KiB"', '"much"', "run 0: size: 'much' is not a size"),
        ('["ring", "parallel"]', "[]", "run 0: algorithms and sizes must name at least one each"),
        ("[[run]]", "[transport]\npath-mtu = 5000\n[[run]]", "transport: path-mtu is 5000, allowed are 256, 512, 1024"),
        (
            "[[run]]",
            "[transport]\nmessage-window = 0\n[[run]]",
            "transport: Expected `int` >= 1 - at `$.message-window`",
        ),
        ("[[run]]", '[middlebox]\nlatency = "x"\n[[run]]', "middlebox: latency: 'x' is not a duration"),
        ("[[run]]", "[run", "testbed.toml: "),
    ],
)
def test_a_mistake_names_the_file_the_entry_and_the_reason(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_runs_and_one_that_is_missing_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to run"):
        load(written(tmp_path, GOOD.split("[[run]]")[0]))
    with pytest.raises(ConfigurationError, match="cannot read"):
        load(tmp_path / "missing.toml")
