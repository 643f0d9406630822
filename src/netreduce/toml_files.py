"""TOML files that describe something: read, checked against types, and errors that say where."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from netreduce.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


class Fields(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """Field names are written with dashes; an unknown one is an error that names it."""


def parse(path: Path) -> tuple[str, dict[str, Any]]:
    """A file's text and what it says. Raises ConfigurationError that names the file, and the line if it is no TOML."""
    try:
        text = path.read_text()
        return text, tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def read(path: Path, kind: type[T]) -> T:
    """What a file describes, as `kind`. Raises ConfigurationError that names the file, and the line or the field."""
    data = parse(path)[1]
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def within(where: object, make: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """``make(*arguments, **named)``, whose ConfigurationError says `where` as well."""
    try:
        return make(*arguments, **named)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
