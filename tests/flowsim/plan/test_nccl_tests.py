"""Logs of nccl-tests of several versions and launchers are read; others are errors that name the line."""

import json

import pytest

from netreduce.errors import ConfigurationError
from netreduce.flowsim.plan.nccl_tests import read

NEW = """# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 16777216 step: 4(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid   1711 on      node-a device  0 [0000:07:00] NVIDIA A100
#  Rank  1 Group  0 Pid   1712 on      node-a device  1 [0000:0a:00] NVIDIA A100
#  Rank  2 Group  0 Pid    812 on      node-b device  0 [0000:07:00] NVIDIA A100
#  Rank  3 Group  0 Pid    813 on      node-b device  1 [0000:0a:00] NVIDIA A100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    20.15    0.05    0.08       0    19.97    0.05    0.08       0
       16384          4096     float     sum      -1    24.11    0.68    1.02       0    23.97    0.68    1.03       0
    16777216       4194304     float     sum      -1  2510.00    6.68   10.03       0  2507.1     6.69   10.04       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 3.71
"""

OLD = """#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    16777216       4194304   float     sum    549.8   30.51   57.21  5e-07    548.9   30.56   57.30  5e-07
    33554432       8388608   float     sum    870.1   38.56   72.31  5e-07    866.8   38.71   72.58  5e-07
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="log.txt"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_log_has_sizes_times_ranks_and_machines(written):
    measured = read(written(NEW))
    assert [(s.size_bytes, s.time_s) for s in measured.samples] == [
        (1024, pytest.approx(20.15e-6)),
        (16384, pytest.approx(24.11e-6)),
        (16777216, pytest.approx(2.51e-3)),
    ]
    assert (measured.ranks, measured.machines) == (4, 2)


def test_an_old_log_without_root_and_ranks_is_read(written):
    measured = read(written(OLD))
    assert [s.time_s for s in measured.samples] == [pytest.approx(549.8e-6), pytest.approx(870.1e-6)]
    assert measured.ranks == 0


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", " 0: ", "[1,0]<stdout>: "])
def test_tags_of_launchers_are_skipped(written, tag):
    tagged = "".join(tag + line + "\n" for line in NEW.splitlines())
    assert read(written(tagged)) == read(written(NEW))


def as_json(**changes) -> str:
    timing = {"time": 20.15, "alg_bw": 0.05, "bus_bw": 0.08, "nwrong": 0.0}
    result = {"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": timing}
    file = {
        "version": 3,
        "args": ["./build/all_reduce_perf", "-J", "out.json"],
        "config": {"nthreads": 1, "devices": [{"rank": r, "hostname": f"node{r // 2}"} for r in range(4)]},
        "results": [result, {**result, "size": 2048, "out_of_place": None, "in_place": timing}],
    }
    return json.dumps({**file, **changes})


def test_the_json_file_is_read(written):
    measured = read(written(as_json(), "out.json"))
    assert [(s.size_bytes, s.time_s) for s in measured.samples] == [
        (1024, pytest.approx(20.15e-6)),
        (2048, pytest.approx(20.15e-6)),
    ]
    assert (measured.ranks, measured.machines) == (4, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "has no table of nccl-tests"),
        (NEW.replace("all_reduce_perf", "all_gather_perf"), "line 2: is a log of all_gather_perf"),
        (NEW.replace("24.11    0.68    1.02       0", "24.11    0.68    1.02      12"), "line 15: 12 wrong elements"),
        (NEW.replace("    24.11    0.68", "    fast    0.68"), "line 15: time is 'fast', not a number"),
        (NEW.replace("float     sum      -1    24.11    0.68    1.02       0    23.97    0.68    1.03       0", ""),
         "line 15: has 2 columns"),
        (as_json(results=[{"size": "big"}]), r"Expected `int`, got `str` - at `\$.results\[0\].size`"),
        (as_json(results=[{"size": 4}]), r"\$.results\[0\] has no time"),
        (as_json(args=["./alltoall_perf"]), "is a log of ./alltoall_perf"),
        ('{"results": [', "is no JSON of nccl-tests"),
    ],
)  # fmt: skip
def test_other_files_are_errors_that_name_the_line_or_field(written, text, message):
    path = written(text)
    with pytest.raises(ConfigurationError, match=message):
        read(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot read"):
        read(tmp_path / "nowhere.txt")
