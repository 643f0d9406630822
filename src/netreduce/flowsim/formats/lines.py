"""Lines of a text file with their numbers, and errors that name them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from netreduce.errors import ConfigurationError

LINES_MAX = 10_000_000


class Lines:
    """The non-empty lines of `path`, split at white space, without what follows a `#` unless `comments` is false."""

    def __init__(self, path: Path, *, comments: bool = True) -> None:
        self.path, self.number, self._comments = path, 0, comments
        try:
            self._text = path.read_text().splitlines()
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path} is not text: {error.reason} at byte {error.start}") from error
        if len(self._text) > LINES_MAX:
            raise ConfigurationError(f"{path} has more than {LINES_MAX} lines")

    def __iter__(self) -> Iterator[list[str]]:
        for number, line in enumerate(self._text, 1):
            self.number = number
            words = (line.split("#", 1)[0] if self._comments else line).split()
            if words:
                yield words

    def fail(self, message: str) -> NoReturn:
        """Raise ConfigurationError that names the current line."""
        raise ConfigurationError(f"{self.path}, line {self.number}: {message}")

    def integer(self, word: str, what: str, least: int = 0) -> int:
        """A whole number of at least `least`."""
        try:
            value = int(word)
        except ValueError:
            self.fail(f"{what} is {word!r}, not a whole number")
        if value < least:
            self.fail(f"{what} is {value}, must be at least {least}")
        return value

    def number_of(self, word: str, what: str, *, or_zero: bool = False) -> float:
        """A number above zero, or from zero on."""
        try:
            value = float(word)
        except ValueError:
            self.fail(f"{what} is {word!r}, not a number")
        if not (0 < value < float("inf") or (or_zero and value == 0)):
            self.fail(f"{what} is {value:g}, must be {'at least' if or_zero else 'above'} zero")
        return value
