"""Traces tell what a step communicates and what it hides; foreign and broken ones are errors that name the event."""

import gzip
from pathlib import Path

import pytest
from tests.flowsim.plan.traces import kernel, nccl, text, two_steps

from netreduce.errors import ConfigurationError
from netreduce.flowsim.plan.kineto import Collective, read

REAL = Path(__file__).with_name("gloo_trace.json")
"""Two steps of DDP over gloo (PyTorch 2.13, record_shapes=True), without the events that do not matter here."""


@pytest.fixture
def written(tmp_path):
    def write(data, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


def test_a_step_has_its_communication_and_the_part_that_nothing_hides(written):
    profile = read(written(text(two_steps())))
    assert profile.steps == 2
    assert profile.step_s == pytest.approx(9e-3)
    assert profile.communication_s == pytest.approx(4e-3)
    assert profile.exposed_s == pytest.approx(3e-3)
    assert profile.hidden_s == pytest.approx(1e-3)
    assert profile.ranks == 16
    assert profile.collectives == (Collective("all-reduce", 40_000_000, 1.0, pytest.approx(4e-3)),)


def test_a_gzipped_trace_is_read(written):
    plain = read(written(text(two_steps())))
    assert read(written(gzip.compress(text(two_steps()).encode()), "trace.json.gz")) == plain


def test_sharded_training_has_gathers_of_the_full_size_in_their_own_dtype(written):
    gather = nccl("_allgather_base", 0, 100, 1000, "BFloat16")
    gather["args"]["Out msg nelems"] = 16_000
    profile = read(written(text([gather, nccl("_reduce_scatter_base", 100, 100, 16_000), nccl("send", 200, 1, 5)])))
    kinds = {(c.kind, c.size_bytes) for c in profile.collectives}
    assert kinds == {("all-gather", 32_000), ("reduce-scatter", 64_000), ("send", 20)}
    assert "marks no steps" in profile.notes[0]


def test_host_events_of_the_same_collective_are_not_counted_twice(written):
    events = two_steps()
    host = {**nccl("allreduce", 0, 10, 10_000_000), "cat": "cpu_op", "name": "record_param_comms"}
    assert read(written(text([*events, host]))).collectives[0].per_step == 1.0


def test_a_real_trace_over_gloo_is_read():
    profile = read(REAL)
    assert profile.steps == 2
    assert profile.ranks == 2
    assert ("all-reduce", 131_584 * 4, 1.0) in {(c.kind, c.size_bytes, c.per_step) for c in profile.collectives}
    assert 0 < profile.exposed_s <= profile.communication_s
    assert "no GPU kernels" in profile.notes[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("hello", "is no Kineto trace"),
        ('{"traceEvents": 5}', r"Expected `array`, got `int` - at `\$.traceEvents`"),
        ('{"traceEvents": [{"dur": "long"}]}', r"at `\$.traceEvents\[0\].dur`"),
        (text([kernel("gemm", 0, 1)]), "has no collectives"),
        (text([nccl("allreduce", 0, 1, 5, "Quaternion")]), r"event 0 \(nccl.*unknown dtype 'Quaternion'"),
        (text([nccl("allreduce", 0, 0, 5)]), "have no duration"),
        (text([nccl("allreduce", 0, 1, "many")]), r"event 0 .*has no number of elements"),
        (text([{**kernel("gloo:all_reduce", 0, 1), "cat": "user_annotation"}]), "profile with record_shapes=True"),
        (gzip.compress(b"hello", mtime=0)[:-4], "broken gzip"),
    ],
)
def test_other_files_are_errors_that_name_the_event(written, data, message):
    path = written(data)
    with pytest.raises(ConfigurationError, match=message):
        read(path)
