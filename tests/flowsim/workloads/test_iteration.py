"""Buckets are PyTorch's, and overlap is arithmetic."""

import pytest

from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.fabrics import single_switch
from netreduce.flowsim.packets import UNTAXED
from netreduce.flowsim.pricing import Pricer
from netreduce.flowsim.schemes import ALL_GATHER, REDUCE_SCATTER, SCHEMES
from netreduce.flowsim.traffic import Settings
from netreduce.flowsim.workloads.iteration import MIB, buckets, ddp, fsdp, units
from netreduce.flowsim.workloads.models import NAMES, Layer, Measured, Model, model_named

MEASURED = Measured("none", 1, 1.0, "made up")


def two_layers() -> Model:
    """Half of the FLOPs each; 30 MiB in the first and 2 MiB in the last layer."""
    layers = (Layer("a", (30 * MIB // 4,), 1.0, "a"), Layer("b", (2 * MIB // 4,), 1.0, "b"))
    return Model("toy", "toy", layers, 4, MEASURED)


@pytest.mark.parametrize("name", NAMES)
def test_buckets_hold_every_gradient_and_all_but_the_last_are_full(name):
    model = model_named(name)
    found = buckets(model)
    assert sum(bucket.size_bytes for bucket in found) == model.gradient_bytes
    assert found[0].size_bytes >= MIB
    assert all(bucket.size_bytes >= 25 * MIB for bucket in found[1:-1])
    assert [bucket.ready for bucket in found] == sorted(bucket.ready for bucket in found)


def test_buckets_are_those_that_pytorch_computes():
    distributed = pytest.importorskip("torch.distributed")
    torch = pytest.importorskip("torch")
    model = model_named("resnet50")
    sizes = [elements for layer in reversed(model.layers) for elements in reversed(layer.tensors)]
    tensors = [torch.empty(size, device="meta") for size in sizes]
    indices, _ = distributed._compute_bucket_assignment_by_size(tensors, [MIB, 25 * MIB])
    expected = [sum(sizes[i] for i in group) * 4 for group in indices]
    assert [bucket.size_bytes for bucket in buckets(model)] == expected


def test_communication_within_the_backward_pass_is_hidden_but_for_the_last_bucket():
    # Backward is 2 s; the small bucket is ready after half of it, the large one at its end.
    iteration = ddp(two_layers(), 3.0, lambda size: size / MIB * 0.01)
    assert iteration.total_s == pytest.approx(3.0 + 0.30)
    assert iteration.communication_s == pytest.approx(0.32)
    assert iteration.share == pytest.approx(0.32 / 3.32)


def test_without_overlap_all_of_it_is_exposed():
    assert ddp(two_layers(), 3.0, lambda size: size / MIB * 0.01, overlap=False).exposed_s == pytest.approx(0.32)


def test_a_slow_network_queues_buckets():
    iteration = ddp(two_layers(), 3.0, lambda size: size / MIB)
    assert iteration.total_s == pytest.approx(2.0 + 2 + 30)


def test_sharded_training_gathers_twice_but_for_the_last_unit_and_scatters_once():
    # Gathers of 30 s and 2 s, 1 s of forward and 2 s of backward computing.
    iteration = fsdp(two_layers(), 3.0, lambda size: size / MIB, lambda size: size / MIB / 2)
    assert iteration.communication_s == pytest.approx(30 + 2 + 30 + 1 + 15)
    # gather a 0-30, compute a 30-30.5, gather b 30-32, compute b 32-32.5; backward b 32.5-33.5 while a is gathered
    # 32.5-62.5; scatter b 62.5-63.5; backward a 62.5-63.5; scatter a 63.5-78.5.
    assert iteration.total_s == pytest.approx(78.5)


def test_units_are_the_layers_and_what_surrounds_them():
    assert len(units(model_named("llama3-8b"))) == 34
    assert sum(size for size, _ in units(model_named("gpt2"))) == model_named("gpt2").gradient_bytes
    assert sum(part for _, part in units(model_named("gpt2"))) == pytest.approx(1)


def test_a_gather_and_a_scatter_are_each_half_of_a_ring_all_reduce():
    cluster, plain = Cluster(single_switch(8, capacity=12.5e9)), Settings(UNTAXED)
    whole = Pricer(SCHEMES["ring"], cluster, plain).price(8_000_000)
    for scheme in (ALL_GATHER, REDUCE_SCATTER):
        half = Pricer(scheme, cluster, plain).price(8_000_000)
        assert half.time_s == pytest.approx(whole.time_s / 2, rel=1e-9)
        assert half.busbw == pytest.approx(whole.busbw, rel=1e-9)
