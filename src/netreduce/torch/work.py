"""The handle of a collective under way: what `async_op=True` returns, and what DDP takes a future from.

The progress thread only says that the data has come. Copying results back and running callbacks of futures is done by
whoever waits, or by threads of their own, so that a callback may start and await collectives.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from netreduce.errors import CollectiveTimeoutError

CALLBACK_THREADS_MAX = 256
"""Futures whose callbacks may block in a collective at the same time; a thread is started only if no other is idle."""

_callbacks = ThreadPoolExecutor(CALLBACK_THREADS_MAX, "netreduce-callback")


class WorkNetReduce(Work):
    """Completes when all `futures` have; then `store`, and `outputs` are valid."""

    def __init__(
        self,
        name: str,
        futures: Sequence[Future[Any]],
        outputs: list[Tensor],
        store: Sequence[Callable[[], None]],
    ) -> None:
        super().__init__()
        self._name = name
        self._outputs = outputs
        self._store = store
        self._futures = futures
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._settled = False
        self._error: BaseException | None = None
        self._trigger: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[Tensor]] | None = None
        self._missing = len(futures)
        for future in futures:
            future.add_done_callback(self._count_down)
        if not futures:
            self._arrived.set()

    def _count_down(self, _future: Future[Any]) -> None:
        """Runs on the progress thread."""
        with self._lock:
            self._missing -= 1
            if self._missing:
                return
            self._arrived.set()
            if self._store or self._trigger is not None:
                with contextlib.suppress(RuntimeError):  # the interpreter is ending: nobody waits any more
                    _callbacks.submit(self._settle)

    def _settle(self) -> None:
        """Put results in place and complete the future, once, on any thread but the progress thread."""
        with self._lock:
            if not self._settled:
                self._settled = True
                self._error = next((future.exception() for future in self._futures if future.exception()), None)
                if self._error is None:
                    for store in self._store:
                        store()
            trigger, self._trigger = self._trigger, None
        if trigger is not None:
            trigger.set_result(None)  # runs the callbacks, and those may use this work

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the results are there; raises the operation's error, `CollectiveTimeoutError` after `timeout`.

        Zero, torch's "no timeout", waits as long as the group's own timeout allows.
        """
        seconds = timeout.total_seconds()
        if not self._arrived.wait(seconds if seconds > 0 else None):
            raise CollectiveTimeoutError(f"{self._name} was not done after {seconds:g} s; it goes on")
        self._settle()
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the output tensors. DDP's reducer and communication hooks build on it."""
        with self._lock:
            if self._future is None:
                # A future that fails for C++ too is one whose callback has raised.
                devices: list[int | str | torch.device] = list(
                    {tensor.device for tensor in self._outputs if tensor.is_cuda}
                )
                trigger: torch.futures.Future[None] = torch.futures.Future(devices=devices)
                self._trigger, self._future = trigger, trigger.then(self._deliver)
                if self._arrived.is_set():
                    _callbacks.submit(self._settle)
            return self._future

    def _deliver(self, _trigger: torch.futures.Future[None]) -> list[Tensor]:
        if self._error is not None:
            raise self._error.with_traceback(None)  # torch's C++ shows it below the text, whatever its length
        return self._outputs

    def is_completed(self) -> bool:
        """Whether the results are there, or an error."""
        if self._arrived.is_set():
            self._settle()
        return self._settled

    def is_success(self) -> bool:
        """Whether the operation is done, and without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error of a completed operation."""
        return self._error if self.is_completed() else None

    def result(self) -> list[Tensor]:
        """The output tensors, once completed."""
        return self._outputs

    def synchronize(self) -> None:
        """As `wait`: host memory knows no streams."""
        self.wait()
