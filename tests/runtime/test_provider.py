"""Which NIC a worker takes; devices are files in a directory."""

import pytest
from tests.runtime.rdma_sysfs import add_port

from netreduce.errors import ConfigurationError
from netreduce.runtime import provider
from netreduce.runtime.provider import choose, provider_named

SWITCH = "127.0.0.1:4792"
"""The way to it has the source address 127.0.0.1."""
GOOD = {1: ("127.0.0.1", "RoCE v2", "eth2")}


@pytest.fixture(autouse=True)
def pyverbs_is_installed(monkeypatch):
    monkeypatch.setattr(provider.importlib.util, "find_spec", lambda name: name)


def chosen(root, wanted="auto", address=SWITCH, **environment):
    return choose(address, wanted, environment=environment, root=root)


def test_auto_takes_the_device_whose_gid_is_on_the_way_to_the_switch(tmp_path):
    add_port(tmp_path, "mlx5_0", {1: ("10.9.9.9", "RoCE v2", "eth1")})
    add_port(tmp_path, "mlx5_1", GOOD)
    choice = chosen(tmp_path)
    assert (choice.port.device, choice.gid.entry) == ("mlx5_1", 1)
    assert "127.0.0.1 of eth2" in choice.reason


def test_an_interface_that_is_named_comes_before_the_route(tmp_path):
    add_port(tmp_path, "mlx5_0", {0: ("fe80::1", "RoCE v2", "eth1"), 1: ("10.9.9.9", "RoCE v2", "eth1")})
    add_port(tmp_path, "mlx5_1", GOOD)
    choice = chosen(tmp_path, NETREDUCE_INTERFACE="eth1")
    assert (choice.port.device, choice.gid.address) == ("mlx5_0", "10.9.9.9")


def test_where_a_device_has_the_address_as_both_types_version_2_is_taken(tmp_path):
    add_port(tmp_path, "mlx5_0", {2: ("127.0.0.1", "IB/RoCE v1", "eth2"), 3: ("127.0.0.1", "RoCE v2", "eth2")})
    assert chosen(tmp_path).gid.entry == 3


@pytest.mark.parametrize(
    ("gids", "options", "reason"),
    [
        ({1: ("10.9.9.9", "RoCE v2", "eth1")}, {}, "no RDMA device has a GID of 127.0.0.1"),
        (GOOD, {"state": "1: DOWN"}, "mlx5_0 port 1 is DOWN"),
        ({1: ("127.0.0.1", "IB/RoCE v1", "eth2")}, {}, "knows 127.0.0.1 as IB/RoCE v1, not as RoCE v2"),
        (None, {}, "no RDMA device"),
    ],
)
def test_auto_falls_back_to_the_embedded_nic_with_the_reason_and_rdma_refuses_with_it(tmp_path, gids, options, reason):
    if gids is not None:
        add_port(tmp_path, "mlx5_0", gids, **options)
    choice = chosen(tmp_path)
    assert choice.port is None
    assert reason in choice.reason
    with pytest.raises(ConfigurationError, match=reason):
        chosen(tmp_path, "rdma")


def test_without_pyverbs_the_reason_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(provider.importlib.util, "find_spec", lambda name: None)
    add_port(tmp_path, "mlx5_0", GOOD)
    assert "apt-get install python3-pyverbs" in chosen(tmp_path).reason


def test_a_switch_on_this_machine_needs_the_embedded_nic(tmp_path):
    add_port(tmp_path, "mlx5_0", GOOD)
    assert chosen(tmp_path, address="local:x").port is None
    with pytest.raises(ConfigurationError, match="the switch is on this machine"):
        chosen(tmp_path, "rdma", "local:x")


def test_embedded_is_taken_when_asked_for(tmp_path):
    add_port(tmp_path, "mlx5_0", GOOD)
    assert chosen(tmp_path, "embedded").port is None


def test_the_argument_comes_before_the_environment_and_nonsense_is_refused():
    assert provider_named(None, {}) == "auto"
    assert provider_named(None, {"NETREDUCE_PROVIDER": "rdma"}) == "rdma"
    assert provider_named("embedded", {"NETREDUCE_PROVIDER": "rdma"}) == "embedded"
    with pytest.raises(ConfigurationError, match="auto, embedded, rdma"):
        provider_named("mlx5_0", {})
