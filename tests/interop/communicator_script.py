"""Our own communicator on soft-RoCE devices, one process a device. Runs in the guest, and of one rank outside of it.

``python3.11 communicator_script.py '<json>'`` forks a process for each of `ranks` ranks, whose device is that of its
interface; the world may have more. It prints ``RESULT {...}``: what each rank found wrong, and what it counted.
"""

import json
import logging
import os
import sys

import numpy as np

from netreduce import Communicator
from netreduce.wire.control import Geometry

SIZES = (1, 1000, 60_003)


def exercise(world):
    """Every way that data takes: through the switch, round the hosts' ring, from rank to rank; what came out wrong."""
    wrong, n, rank = [], world.world_size, world.rank

    def check(name, got, want):
        if not np.array_equal(got, want):
            wrong.append(name)

    for dtype in (np.float32, np.int32, np.float16):
        for size in SIZES:
            base = np.arange(size, dtype=dtype) % 101
            array = base + dtype(rank)
            world.all_reduce(array)
            check(f"all_reduce of {size} {dtype.__name__}", array, base * n + n * (n - 1) // 2)
    array = np.full(5001, float(rank + 1))
    world.all_reduce(array, "product", algorithm="ring")
    check("all_reduce round the ring", array, np.full(5001, float(np.prod(range(1, n + 1)))))
    blocks = world.reduce_scatter(np.arange(n * 700, dtype=np.float32))
    check("reduce_scatter", blocks, n * np.arange(rank * 700, rank * 700 + 700, dtype=np.float32))
    array = np.full(3000, rank)
    check("broadcast", world.broadcast(array, n - 1), np.full(3000, n - 1))
    check("all_gather", world.all_gather(np.full(10, rank)), np.repeat(np.arange(n), 10).reshape(n, 10))
    rows = np.arange(n) * 100 + rank
    check("all_to_all", world.all_to_all(rows.reshape(n, 1)).ravel(), rank * 100 + np.arange(n))
    passed = np.empty(1000)
    handle = world.recv(passed, (rank - 1) % n, wait=False)
    world.send(np.full(1000, float(rank)), (rank + 1) % n)
    handle.wait()
    check("send and recv", passed, np.full(1000, float((rank - 1) % n)))
    world.barrier()
    return wrong


def run(rank, options):
    """One rank: what it found wrong, the engine's and the device's counts."""
    os.environ["NETREDUCE_INTERFACE"] = f"eth{rank}"
    geometry = Geometry(path_mtu=options["path_mtu"])
    address, world_size, provider = options["switch"], options["world_size"], options["provider"]
    with Communicator.connect(address, rank, world_size, provider=provider, geometry=geometry, timeout_s=60) as world:
        wrong = exercise(world)
        counts = world.statistics()
    return {"wrong": wrong, "engine": counts["engine"], "device": counts["nic"]}


def main():
    options = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    pipes = []
    for rank in range(options["ranks"]):
        into, out = os.pipe()
        if os.fork() == 0:
            try:
                text = json.dumps(run(rank, options))
            except Exception as error:
                text = json.dumps({"wrong": [f"{type(error).__name__}: {error}"], "engine": {}, "device": {}})
            os.write(out, text.encode())
            os._exit(0)
        os.close(out)
        pipes.append(into)
    results = []
    for into in pipes:
        with open(into) as pipe:
            results.append(json.loads(pipe.read()))
    print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
