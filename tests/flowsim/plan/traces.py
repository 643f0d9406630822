"""Made-up profiler traces in Kineto's form."""

import json
from typing import Any


def kernel(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7, "args": args}


def nccl(
    collective: str, ts: float, dur: float, elements: int, dtype: str = "Float", ranks: int = 16
) -> dict[str, Any]:
    return kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ts,
        dur,
        **{
            "Collective name": collective,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": ranks,
            "dtype": dtype,
        },
    )


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": ts, "dur": dur, "tid": 1}


def two_steps() -> list[dict[str, Any]]:
    """Each step: 6 ms of computing, of which 1 ms overlaps an all-reduce of 4 ms; 9 ms in all."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "args": {"name": "python"}}]
    for number in range(2):
        start = 9000.0 * number
        events += [
            step(number, start, 9000.0),
            kernel("gemm", start, 6000.0),
            nccl("allreduce", start + 5000.0, 4000.0, 10_000_000),
        ]
    return events


def text(events: list[dict[str, Any]]) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events})
