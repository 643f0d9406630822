"""A group of one rank: no switch, no cable, no thread. Collectives run to their end in the call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from netreduce.collectives.engine import Engine
from netreduce.collectives.operation import Operation
from netreduce.nic import Nic, NicLimits
from netreduce.nic.verbs import Context
from netreduce.runtime.clock import Clock
from netreduce.runtime.short_collectives import ShortCollectives
from netreduce.runtime.warmup import ensure_compiled
from netreduce.wire import control


class Solo:
    """The only member of a group; `start` and `run` are as those of `Member`."""

    short: ShortCollectives | None = None

    def __init__(self, geometry: control.Geometry) -> None:
        ensure_compiled()
        self._clock = Clock()
        self._nic = Nic("solo", "02:4e:52:00:00:01", "10.78.0.1", limits=NicLimits())
        self.engine = Engine(Context(self._nic), 0, 1, geometry)
        self.engine.connect(0, (self.engine.endpoint(),))

    def start(self, function: Callable[[Engine], Operation]) -> Future[None]:
        """Call ``function(engine)`` and finish its operation; the future is done."""
        future: Future[None] = Future()
        try:
            operation = function(self.engine)
        except Exception as error:  # the caller's mistake is raised by its future, as with more ranks
            future.set_exception(error)
            return future
        while not operation.done:
            self._nic.advance(self._clock.now_ps())
            worked = self.engine.progress(self._clock.now_ps())
            assert worked or operation.done, f"{operation.name} of a single rank waits for somebody"
        if operation.error is None:
            future.set_result(None)
        else:
            future.set_exception(operation.error)
        return future

    def run(self, function: Callable[[Engine], Operation]) -> None:
        """As `Member.run`: raises the operation's error."""
        self.start(function).result()
