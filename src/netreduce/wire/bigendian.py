"""Big-endian numbers at byte offsets: the order of every header field on the wire."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled


@compiled
def read_be16(data: np.ndarray, at: int) -> int:
    """Big-endian 16-bit number at offset `at`."""
    return (np.int64(data[at]) << 8) | np.int64(data[at + 1])


@compiled
def read_be24(data: np.ndarray, at: int) -> int:
    """Big-endian 24-bit number at offset `at`."""
    return (np.int64(data[at]) << 16) | (np.int64(data[at + 1]) << 8) | np.int64(data[at + 2])


@compiled
def read_be32(data: np.ndarray, at: int) -> int:
    """Big-endian 32-bit number at offset `at`."""
    return (read_be16(data, at) << 16) | read_be16(data, at + 2)


@compiled
def read_be64(data: np.ndarray, at: int) -> int:
    """Big-endian 64-bit number at offset `at`, as int64 bits."""
    return (read_be32(data, at) << 32) | read_be32(data, at + 4)


@compiled
def write_be16(data: np.ndarray, at: int, value: int) -> None:
    """Write a big-endian 16-bit number at offset `at`."""
    data[at] = (value >> 8) & 0xFF
    data[at + 1] = value & 0xFF


@compiled
def write_be24(data: np.ndarray, at: int, value: int) -> None:
    """Write a big-endian 24-bit number at offset `at`."""
    data[at] = (value >> 16) & 0xFF
    write_be16(data, at + 1, value)


@compiled
def write_be32(data: np.ndarray, at: int, value: int) -> None:
    """Write a big-endian 32-bit number at offset `at`."""
    write_be16(data, at, value >> 16)
    write_be16(data, at + 2, value)


@compiled
def write_be64(data: np.ndarray, at: int, value: int) -> None:
    """Write a big-endian 64-bit number at offset `at`."""
    write_be32(data, at, value >> 32)
    write_be32(data, at + 4, value)
