"""Errors that reach the user. Each message says what happened, where, and what to do about it, in one line."""

from __future__ import annotations

from typing import TypeVar

_Error = TypeVar("_Error", bound="NetReduceError")


class NetReduceError(RuntimeError):
    """Base of every error that NetReduce raises on purpose."""

    def saying(self: _Error, text: str) -> _Error:
        """The same error with another text, such as one that names the ring and the call that it ended."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.args = (text,)
        return other


class ConfigurationError(NetReduceError, ValueError):
    """A setting is wrong: the message names the field, the value and what is allowed."""


class VerbsError(NetReduceError):
    """A verbs call was refused, as `errno` would tell it (bad state, queue full, bad key)."""


class CompletionError(NetReduceError):
    """A work request completed with a status other than success.

    `status` is the verbs name, such as ``IBV_WC_RETRY_EXC_ERR``.
    """

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class CaptureError(NetReduceError, ValueError):
    """A capture file cannot be read; the message names the file, the byte offset and the packet."""


class AdmissionError(NetReduceError):
    """The switch refused a ring at set-up; the message says which limit it would exceed."""


class PeerLostError(NetReduceError):
    """A rank of the ring died or left while others needed it."""


class SwitchLostError(NetReduceError):
    """The switch went away."""


class MismatchError(NetReduceError):
    """Ranks disagree about a collective (length, dtype or operation); the message names both sides.

    `sides` holds (rank, description) of both, where they are known, so that they can be told to others.
    """

    def __init__(self, message: str, sides: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.sides = sides

    @classmethod
    def between(cls, *sides: tuple[int, str]) -> MismatchError:
        """The error for sides that are given as (rank, what it called)."""
        return cls("ranks disagree: " + ", ".join(f"rank {rank} called {what}" for rank, what in sides), sides)


class CollectiveTimeoutError(NetReduceError, TimeoutError):
    """A collective did not finish within the group's timeout; the message names the ranks that are missing."""


class UnsupportedError(NetReduceError, TypeError):
    """A dtype or operation is not supported; the message names those that are."""


class StragglerWarning(UserWarning):
    """A collective waits for a rank that has not sent yet."""
