"""Arrays lent to a collective, and the handle that gives them back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from netreduce.errors import ConfigurationError


class Lent:
    """Contiguous memory for `array`: its own, or a copy that is copied back afterwards."""

    def __init__(self, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray):
            raise ConfigurationError(f"want a NumPy array, not {type(array).__name__}")
        is_contiguous = array.flags.c_contiguous
        self.memory = array if is_contiguous else np.ascontiguousarray(array)
        self.copies = () if is_contiguous else ((array, self.memory),)


class Handle:
    """A collective under way, from a call with ``wait=False``. Its arrays are the network's until `wait` returns."""

    def __init__(self, future: Future[None], result: Any, finish: Callable[[], None]) -> None:
        self._future = future
        self._result = result
        self._finish = finish
        self._is_finished = False

    def wait(self, timeout_s: float | None = None) -> Any:
        """The call's result, once it is there.

        Raises the collective's error, such as `PeerLostError`, `MismatchError`, `CollectiveTimeoutError`,
        `UnsupportedError`; and TimeoutError when `timeout_s` is over before, while the collective goes on.
        """
        self._future.result(timeout_s)
        if not self._is_finished:
            self._is_finished = True
            self._finish()
        return self._result

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._future.done()
