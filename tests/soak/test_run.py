"""Soak runs: the kept seeds, a few fresh ones, and that the checkers see what is planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from netreduce.fabric import Rule, SeenFrame
from netreduce.soak import run as soak_run
from netreduce.soak.draw import Draw, draw
from netreduce.soak.rig import Rig
from netreduce.soak.run import run
from netreduce.wire.icrc import write_icrc
from netreduce.wire.opcodes import Opcode

KEPT = [int(line.split("#")[0]) for line in (Path(__file__).parent / "kept_seeds.txt").read_text().splitlines() if line]


def holds(seed: int, splice: bool, levels: bool = True) -> None:
    drawn = draw(seed, levels=levels)
    outcome = run(drawn, splice=splice)
    assert not outcome.violations, "\n".join([*drawn.lines(), *outcome.violations, outcome.tables])


@pytest.mark.parametrize("levels", [False, True], ids=["one switch", "levels"])
@pytest.mark.parametrize("seed_kept", KEPT)
def test_a_kept_seed_that_found_something_holds(seed_kept: int, levels: bool) -> None:
    for splice in (True, False):
        holds(seed_kept, splice, levels)


@pytest.mark.parametrize("splice", [True, False], ids=["spliced", "forwarded"])
@pytest.mark.parametrize("number", range(4))
def test_a_fresh_seed_holds(number: int, splice: bool, rng: np.random.Generator) -> None:
    holds(int(rng.integers(1 << 40)), splice)


def test_a_run_is_the_same_again() -> None:
    assert run(draw(17)) == run(draw(17))
    assert draw(17) == draw(17) != draw(18)


def quiet_draw() -> Draw:
    """A spliced run without faults of its own."""
    return next(drawn for drawn in map(draw, range(1000)) if not drawn.chances and not drawn.interruptions)


def flip_a_result(frame: SeenFrame) -> None:
    """Change a payload byte and give the frame an ICRC that fits: no transport can notice."""
    packet = frame.packet
    frame.data[int(packet.icrc_at) - 5] ^= 0x40
    write_icrc(frame.data, packet.ip_at, packet.udp_at, packet.icrc_at)


def test_one_wrong_bit_in_one_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(rig: Rig, drawn: Draw) -> list[Rule]:
        where = [opcode for opcode in Opcode if opcode.name.startswith("SEND")]
        host = drawn.rings[0].hosts[0]
        return [rig.links[host].down.alter(flip_a_result, opcode=where, nth=1)]

    monkeypatch.setattr(soak_run, "_hurt", plant)
    outcome = run(quiet_draw())
    assert len(outcome.violations) == 1
    assert outcome.violations[0].startswith(("sums: ring", "headers_pass_unchanged: ring"))
    assert "worker0" in outcome.tables


def test_a_ring_that_cannot_finish_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(rig: Rig, drawn: Draw) -> list[Rule]:
        rig.rings[0].ranks[0].withholding = True
        return []

    monkeypatch.setattr(soak_run, "_hurt", plant)
    monkeypatch.setattr(soak_run, "HEAL_PS_MAX", 10**9)
    outcome = run(quiet_draw())
    assert len(outcome.violations) == 1
    assert outcome.violations[0].startswith("liveness: not done after")
