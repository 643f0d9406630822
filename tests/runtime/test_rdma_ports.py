import pytest
from tests.runtime.rdma_sysfs import add_interface, add_port

from netreduce.runtime.rdma_ports import Gid, hardware_counters, interface_path_mtu, rdma_ports


def test_ports_and_gids_are_read_as_the_kernel_shows_them(tmp_path):
    gids = {0: ("fe80::1", "IB/RoCE v1", "eth2"), 3: ("10.0.0.1", "RoCE v2", "eth2.5")}
    add_port(tmp_path, "mlx5_1", {}, state="1: DOWN", layer="InfiniBand")
    add_port(tmp_path, "mlx5_0", gids)
    first, second = rdma_ports(tmp_path)
    assert (str(first), first.state, first.rate) == ("mlx5_0 port 1", "ACTIVE", "100 Gb/sec (4X EDR)")
    assert first.gids == (Gid(0, "fe80::1", "IB/RoCE v1", "eth2"), Gid(3, "10.0.0.1", "RoCE v2", "eth2.5"))
    assert (second.device, second.state, second.link_layer, second.gids) == ("mlx5_1", "DOWN", "InfiniBand", ())


def test_a_host_without_devices_has_no_ports(tmp_path):
    assert rdma_ports(tmp_path) == []


@pytest.mark.parametrize(("mtu", "path_mtu"), [(1500, 1024), (4191, 2048), (4192, 4096), (9000, 4096), (300, 0)])
def test_the_path_mtu_of_an_interface_follows_the_kernels_rule(tmp_path, mtu, path_mtu):
    add_interface(tmp_path, "eth2", mtu)
    assert interface_path_mtu("eth2", tmp_path) == path_mtu


def test_counters_are_those_of_the_driver(tmp_path):
    add_port(tmp_path, "rxe0", {})
    directory = tmp_path / "sys/class/infiniband/rxe0/ports/1/hw_counters"
    (directory / "sent_pkts").write_text("17\n")
    (directory / "lifespan").write_text("12\n")
    assert hardware_counters(rdma_ports(tmp_path)[0], tmp_path) == {"sent_pkts": 17}
