"""A process that has loaded everything and forks ranks: real processes, each there within milliseconds.

``python nest.py`` reads requests from its standard input, a line of JSON each: ``{"code": ..., "variables": {...},
"log": path}``. It forks a child for each, whose output goes to that file, answers with the child's process id, and
reaps children as they end. A child runs its code as the main program: how it ends is how a program ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def child(request: dict[str, Any]) -> None:
    """Become the requested program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    exec(compile(request["code"], "<rank>", "exec"), {"__name__": "__main__", **request["variables"]})


def reap(*_: object) -> None:
    """Wait for those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def serve() -> dict[str, Any] | None:
    """Fork until the requests end; in a child, its request."""
    signal.signal(signal.SIGCHLD, reap)
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            return request
        print(pid, flush=True)
    return None


if __name__ == "__main__":
    from netreduce.runtime.exercise import exercise
    from netreduce.runtime.warmup import ensure_compiled

    ensure_compiled()
    exercise()
    print("ready", flush=True)
    mine = serve()
    if mine is not None:
        child(mine)
