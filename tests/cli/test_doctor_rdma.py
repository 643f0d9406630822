from tests.runtime.rdma_sysfs import add_interface, add_port

from netreduce.cli.doctor_rdma import rdma_checks


def findings(root, switch="", provider="auto"):
    return {check.name.strip(): check for check in rdma_checks(switch, provider, root)}


def test_no_device_is_no_trouble(tmp_path):
    (check,) = rdma_checks("", "auto", tmp_path)
    assert (check.status, "none is needed" in check.found) == ("ok", True)


def test_a_good_port_shows_state_rate_mtu_and_gids(tmp_path):
    add_interface(tmp_path, "eth2", 9000)
    add_port(tmp_path, "mlx5_0", {0: ("fe80::1", "IB/RoCE v1", "eth2"), 3: ("10.0.0.1", "RoCE v2", "eth2")})
    found = findings(tmp_path)
    assert found["mlx5_0 port 1"].status == "ok"
    assert found["mlx5_0 port 1"].found == "ACTIVE, Ethernet, 100 Gb/sec (4X EDR), eth2 with active MTU 4096"
    assert found["GID 0"].found == "fe80::1 of eth2, IB/RoCE v1"
    assert found["GID 3"].found == "10.0.0.1 of eth2, RoCE v2"


def test_every_port_that_does_not_do_says_what_to_type(tmp_path):
    add_interface(tmp_path, "eth2", 1500)
    good = {3: ("10.0.0.1", "RoCE v2", "eth2")}
    add_port(tmp_path, "small", good)
    add_port(tmp_path, "down", good, state="1: DOWN")
    add_port(tmp_path, "old", {3: ("10.0.0.1", "IB/RoCE v1", "eth2")})
    add_port(tmp_path, "fabric", {}, layer="InfiniBand")
    found = findings(tmp_path)
    assert "ip link set eth2 mtu 4192" in found["small port 1"].advice
    assert "ip link set eth2 up" in found["down port 1"].advice
    assert "ip addr add" in found["old port 1"].advice
    assert "Ethernet" in found["fabric port 1"].advice


def test_with_a_switch_the_choice_of_the_nic_is_told(tmp_path):
    add_port(tmp_path, "mlx5_0", {3: ("10.0.0.1", "RoCE v2", "eth2")})
    check = findings(tmp_path, "127.0.0.1:4792")["provider"]
    assert "the embedded NIC" in check.found
    assert "no RDMA device has a GID of 127.0.0.1" in check.found
    refused = findings(tmp_path, "127.0.0.1:4792", "rdma")["provider"]
    assert (refused.status, "127.0.0.1" in refused.found) == ("note", True)
