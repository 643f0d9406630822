"""One payload CRC for all frames of a slot: CRC is linear, so a frame adds only that of its headers.

``crc(A + B) = shift(crc(A), len(B)) ^ crc(B)``, as zlib's crc32_combine has it; `shift` multiplies by x^(8 len) modulo
the CRC's polynomial. For a given length that is a linear map of 32 bits: four tables of 256 entries, one per byte,
exclusive-ored.
"""

from __future__ import annotations

import zlib

import numpy as np

from netreduce.compiled import compiled

SHIFT_ENTRIES = 4 * 256


def _shift_one_bit_of(position: int, length_bytes: int) -> int:
    """What bit `position` of a CRC becomes after `length_bytes` zero bytes, by zlib itself.

    zlib's values are inverted before and after; the exclusive-or with the shift of no bit at all undoes that.
    """
    zeros = bytes(length_bytes)
    return zlib.crc32(zeros, 1 << position) ^ zlib.crc32(zeros, 0)


def make_shift(length_bytes: int) -> np.ndarray:
    """The tables that shift a CRC over `length_bytes`, for `shifted`. int64[4 * 256]."""
    table = np.zeros((4, 256), np.int64)
    for byte in range(4):
        for bit in range(8):
            image = _shift_one_bit_of(8 * byte + bit, length_bytes)
            has_bit = np.arange(256) >> bit & 1
            table[byte] ^= has_bit * image
    return table.reshape(-1)


@compiled
def shifted(shift: np.ndarray, crc: int) -> int:
    """The CRC `crc` moved before as many bytes as `shift` was made for; exclusive-or with their CRC to join both."""
    return (
        shift[crc & 0xFF]
        ^ shift[256 + ((crc >> 8) & 0xFF)]
        ^ shift[512 + ((crc >> 16) & 0xFF)]
        ^ shift[768 + (crc >> 24)]
    )
