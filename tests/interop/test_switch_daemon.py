"""`netreduce switch` as an operator meets it: what it refuses and gives up, and how it leaves interfaces behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.namespaces import Network
from tests.interop.namespaces import require_root
from tests.patience import eventually

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
TELL_OFFLOADS = """
import sys
from pyroute2.ethtool import Ethtool
from netreduce.runtime.offloads import SPOILING
with Ethtool() as ethtool:
    features = ethtool.get_features(sys.argv[1]).features
    print(*(name for name in SPOILING if name in features and features[name].enable))
"""


@pytest.fixture(scope="module")
def network():
    require_root()
    network = Network(1, "route")
    yield network
    network.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def run_on_switch(network: Network, *command: str) -> str:
    words = ["ip", "netns", "exec", network.switch, *command]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def offloads_that_are_on(network: Network) -> set[str]:
    return set(run_on_switch(network, sys.executable, "-c", TELL_OFFLOADS, "sw9").split())


def start(network: Network, directory: Path, settings: str = "path-mtu = 1024", **changes) -> subprocess.Popen[str]:
    for name, value in changes.items():
        setattr(network, name, value)
    return network.start_switch(directory, settings)


def test_an_mtu_that_is_too_small_is_refused_with_the_number_to_set(network, directory):
    run_on_switch(network, "ip", "link", "set", "eth0", "mtu", "1500")
    try:
        with pytest.raises(AssertionError, match="MTU 1500, a path MTU of 4096 needs 4186: ip link set eth0 mtu 4186"):
            start(network, directory, "path-mtu = 4096")
    finally:
        run_on_switch(network, "ip", "link", "set", "eth0", "mtu", str(network.mtu))


def test_a_router_beside_a_kernel_that_forwards_is_refused_with_what_to_type(network, directory):
    run_on_switch(network, "sysctl", "-w", "net.ipv4.conf.eth0.forwarding=1")
    try:
        with pytest.raises(AssertionError, match=re.escape("sysctl -w net.ipv4.conf.eth0.forwarding=0")):
            start(network, directory)
    finally:
        run_on_switch(network, "sysctl", "-w", "net.ipv4.conf.eth0.forwarding=0")


def test_a_router_needs_an_address_that_routes_can_point_at(network, directory):
    run_on_switch(network, "ip", "link", "add", "sw8", "type", "veth", "peer", "name", "sw7")
    with pytest.raises(AssertionError, match=r"interface 'sw8' has no address.*ip addr add \.\.\. dev sw8"):
        start(network, directory, ports=["sw8"])
    network.ports = ["eth0"]


def test_once_its_ports_are_open_it_has_no_privileges_and_tells_its_story_in_json(network, directory):
    switch = start(network, directory, 'path-mtu = 1024\nlog = "json"')
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{switch.pid}/status").read_text().splitlines())
    assert set(status["Uid"].split()) == {"65534"}  # nobody, without being told: root is never kept
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    switch.send_signal(signal.SIGTERM)
    output, _ = switch.communicate(timeout=60)
    assert switch.returncode == 0
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert any(line["message"].startswith("draining") and line["level"] == "info" for line in lines)
    assert all({"time", "logger"} <= set(line) for line in lines)


def test_offloads_come_back_after_sigterm_after_a_kill_and_after_the_next_start_if_even_the_helper_was_killed(
    network, directory
):
    run_on_switch(network, "ip", "link", "add", "sw9", "type", "veth", "peer", "name", "sw10")
    run_on_switch(network, "ip", "link", "set", "sw9", "up")
    before = offloads_that_are_on(network)
    assert before
    network.mode, network.ports = "bridge", ["sw9"]
    try:
        for ending in (signal.SIGTERM, signal.SIGKILL):
            switch = start(network, directory)
            assert not offloads_that_are_on(network)
            switch.send_signal(ending)
            switch.communicate(timeout=60)
            assert eventually(lambda: offloads_that_are_on(network) == before)
        switch = start(network, directory)
        helpers = Path(f"/proc/{switch.pid}/task/{switch.pid}/children").read_text().split()
        for pid in [*map(int, helpers), switch.pid]:
            os.kill(pid, signal.SIGKILL)
        switch.communicate(timeout=60)
        assert not offloads_that_are_on(network)
        switch = start(network, directory)
        switch.terminate()
        switch.communicate(timeout=60)
        assert eventually(lambda: offloads_that_are_on(network) == before)
    finally:
        network.mode, network.ports = "route", ["eth0"]


REDUCE_UNTIL_IT_FAILS = """
import numpy as np
from netreduce import Communicator
from netreduce.errors import NetReduceError
with Communicator.connect(timeout_s=100) as world:
    try:
        while True:
            world.all_reduce(np.ones(1000, np.float32))
            print("RIGHT", flush=True)
    except NetReduceError as error:
        print("ERROR", type(error).__name__, error, flush=True)
"""
REDUCE = """
import numpy as np
from netreduce import Communicator
with Communicator.connect(timeout_s=100) as world:
    assert (world.all_reduce(np.ones(1000, np.float32)) == 2).all()
"""


@pytest.mark.parametrize("mode", ["bridge", "route"])
def test_workers_on_hosts_hear_that_their_switch_was_killed_and_the_next_one_at_its_address_serves(mode, directory):
    """Amid the hosts' links a dead switch takes the control channel with it: then RC's retries tell."""
    require_root()
    where = r"^ERROR {} group 'world' \(ring \d+\): (?=.*all_reduce #\d+).*"  # seen in a call, or between two
    lost = where.format("SwitchLostError") + r"the switch at 10\.80\.0\.254:7400 is gone: .+$"
    unheard = where.format("(Completion|PeerLost)Error") + "IBV_WC_RETRY_EXC_ERR: .+$"
    network, running = Network(2, mode), []
    try:
        switch = network.start_switch(directory)
        for rank, host in enumerate(network.hosts):
            command = [sys.executable, "-c", REDUCE_UNTIL_IT_FAILS]
            running.append(network.start(host, command, network.environment(rank)))
        for process in running:
            assert any(line == "RIGHT\n" for line in process.stdout)
        switch.kill()
        switch.communicate()
        for process in running:
            output, _ = process.communicate(timeout=100)
            assert re.search(lost if mode == "route" else f"{lost}|{unheard}", output, re.MULTILINE), output[-2000:]
        switch = network.start_switch(directory)
        network.on_all_hosts([sys.executable, "-c", REDUCE], 100)
        switch.terminate()
        switch.communicate(timeout=60)
    finally:
        for process in running:
            process.kill()
        network.close()


def test_two_hosts_and_a_switch_on_one_machine_as_the_readme_shows_it():
    require_root()
    environment = os.environ | {"PYTHON": sys.executable}
    script = ["sh", str(ROOT / "examples" / "two_hosts.sh")]
    result = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rank 0: 1 + 2 = 3" in result.stdout
    assert "rank 1: 1 + 2 = 3" in result.stdout
    assert re.search(r"packets_spliced +[1-9]", result.stdout)
    assert "nr-switch" not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_the_service_is_what_systemd_expects(tmp_path: Path):
    unit = (ROOT / "packaging" / "netreduce-switch.service").read_text()
    (tmp_path / "netreduce-switch.service").write_text(unit.replace("/opt/netreduce/bin/netreduce", "/bin/true"))
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "netreduce-switch.service")]
    result = subprocess.run(verify, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
