"""Plans follow from prices: hand-made cases, refusals, and the verdict."""

import pytest
from tests.flowsim.plan.traces import nccl, text, two_steps

from netreduce.errors import ConfigurationError
from netreduce.flowsim.cluster import Cluster, Inside
from netreduce.flowsim.fabrics import leaf_spine, single_switch
from netreduce.flowsim.graph import Graph
from netreduce.flowsim.packets import UNTAXED
from netreduce.flowsim.plan import report
from netreduce.flowsim.plan.advice import plan_model, plan_profile
from netreduce.flowsim.plan.kineto import read
from netreduce.flowsim.traffic import Settings
from netreduce.flowsim.workloads.models import model_named

RATE = 12.5e9
PLAIN = Settings(UNTAXED)


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(text(two_steps()))
    return read(path)


def test_a_profiled_step_keeps_what_was_hidden(profile):
    # 40 MB: a ring of 16 takes 6 ms, NetReduce 3.2 ms; computing takes 6 ms, of which 1 ms hides communication.
    plan = plan_profile(profile, Cluster(single_switch(16, capacity=RATE, latency_s=0.0)), PLAIN)
    options = {option.scheme: option for option in plan.options}
    assert options["ring"].iteration_s == pytest.approx(6e-3 + 6e-3 - 1e-3)
    assert options["netreduce"].iteration_s == pytest.approx(6e-3 + 3.2e-3 - 1e-3)
    assert plan.speedup(options["netreduce"]) == pytest.approx(9 / 8.2)
    assert report.verdict(plan) == "Yes: NetReduce would make an iteration 1.10x as fast as measured."
    assert any("+50% of the measured time" in line for line in plan.assumptions)


def test_a_model_on_machines_with_nvlink_gains_and_with_pcie_would_lose():
    cluster = Cluster(single_switch(4, capacity=RATE), Inside(8, 150e9))
    plan = plan_model(model_named("gpt2"), cluster, PLAIN)
    options = {option.scheme: option for option in plan.options}
    assert options["parallel"].iteration_s < options["hierarchical"].iteration_s < options["ring"].iteration_s
    assert any("less than 1.87 times as fast as its port (here 12.00 times)" in line for line in plan.limits)
    assert any(line.startswith("with PCIe 3.0 inside: Parallel NetReduce would be 0.") for line in plan.limits)


def test_a_model_that_hides_its_communication_is_told_so():
    plan = plan_model(model_named("resnet50"), Cluster(single_switch(6, capacity=RATE)), PLAIN)
    assert report.verdict(plan).startswith("Hardly")
    assert any("below 5%" in line for line in plan.limits)


def test_sharded_training_is_told_that_gathers_stay_as_they_are():
    cluster = Cluster(leaf_spine(4, 4, 1, capacity=50e9), Inside(8, 450e9))
    plan = plan_model(model_named("llama3-8b"), cluster, PLAIN, sharded=True)
    options = {option.scheme: option for option in plan.options}
    assert options["parallel"].communication_s > 0.6 * options["ring"].communication_s
    assert any("does not speed them up" in line for line in plan.limits)


def test_a_given_computing_time_replaces_the_published_one():
    cluster = Cluster(single_switch(6, capacity=RATE))
    slow, fast = (plan_model(model_named("alexnet"), cluster, PLAIN, compute) for compute in (1.0, 1e-3))
    assert slow.base_s > 1.0 > fast.base_s
    assert "computing takes 1 ms an iteration, forward 1/3 of it" in fast.assumptions


def test_a_cluster_without_a_tree_refuses_the_network_and_says_why():
    ends = [("a", "s"), ("s", "a"), ("s", "b"), ("b", "t"), ("t", "s")]
    graph = Graph(["a", "b"], [(*pair, RATE, 0.0) for pair in ends])
    plan = plan_model(model_named("alexnet"), Cluster(graph), PLAIN)
    refused = next(option for option in plan.options if option.scheme == "netreduce")
    assert "needs the link t->b" in refused.refusal
    assert any("NetReduce is refused" in line for line in plan.reasons)
    assert "refused" in report.text(plan)


def test_a_trace_without_collectives_that_can_be_planned_is_an_error(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(text([nccl("send", 0, 1, 5)]))
    with pytest.raises(ConfigurationError, match="no all-reduce, all-gather or reduce-scatter"):
        plan_profile(read(path), Cluster(single_switch(4, capacity=RATE)), PLAIN)


def test_the_text_fits_one_screen_and_the_page_loads_nothing(profile):
    plan = plan_profile(profile, Cluster(single_switch(16, capacity=RATE)), PLAIN)
    assert len(report.text(plan).splitlines()) <= 40
    page = report.html(plan)
    assert page.startswith("<!doctype html>")
    assert "http" not in page
    assert "src=" not in page
    assert page.count("<rect") == 2 * 4
    assert report.verdict(plan) in page
