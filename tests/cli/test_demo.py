"""The demonstration, short: what it prints, and what it makes of its figures."""

import subprocess
import sys
from pathlib import Path

import pytest

from netreduce.cli.demo import Training, conclude, find_script
from netreduce.wire.control import Statistics


def training(losses: list[float], spliced: int = 10) -> Training:
    counters = {"packets_spliced": spliced, "messages_aggregated": 5}
    workers = {"retransmitted_pkts": 3, "in_network_bytes_sent": 4000, "ring_bytes": 6000}
    return Training(losses, 0.9, Statistics(counters, workers, rings={}, ports={}))


def test_it_is_satisfied_when_the_losses_agree_and_the_switch_added(capsys: pytest.CaptureFixture[str]):
    assert conclude(training([1.0, 0.5]), training([1.0, 0.5001]), workers=4)
    printed = capsys.readouterr().out
    assert "1,000 payload bytes" in printed
    assert "1,500, 2(P-1)/P = 1.50 times as much" in printed
    assert "at most 0.02" in printed
    assert "ACTIVE: the switch summed" in printed


def test_it_is_not_satisfied_when_the_losses_differ_or_nothing_was_added(capsys: pytest.CaptureFixture[str]):
    assert not conclude(training([1.0, 0.5]), training([1.0, 0.502]), workers=4)
    assert not conclude(training([1.0], spliced=0), training([1.0]), workers=4)
    assert "NOT active" in capsys.readouterr().out


def test_the_training_script_is_found_and_reads_its_own_help():
    script = find_script()
    assert "--backend" in subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True).stdout


@pytest.mark.live
def test_the_demonstration_trains_over_the_switch_and_over_gloo():
    command = [Path(sys.executable).with_name("netreduce"), "demo", "--workers", "2", "--epochs", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    for text in ("netreduce  epoch 2/2", "gloo  epoch 2/2", "final accuracy", "ACTIVE: the switch summed"):
        assert text in result.stdout
