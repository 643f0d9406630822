"""The table of nccl-tests, and the same as JSON: sizes, times, algorithm and bus bandwidth, wrong elements.

algbw is size / time. busbw corrects it by what a collective must move over each link when only hosts work, so that it
can be compared with the speed of a link: 2(n-1)/n for all_reduce, (n-1)/n for all_gather and reduce_scatter. A network
that adds may exceed the link with it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from netreduce.errors import ConfigurationError

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_HEADER = "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s"
_ROW = "%12d  %12d  %8s  %6s  %6d"
_CELL = "  %7s  %6s  %6s  %6s"


class Timing(Struct, frozen=True):
    """One size, out of place or in place. Times are seconds per call, averaged over the ranks."""

    mean_s: float
    min_s: float
    median_s: float
    p99_s: float
    algbw: float  # 1e9 bytes per second
    busbw: float
    wrong: int  # elements, over all ranks; -1 if not checked


class Row(Struct, frozen=True):
    """One size."""

    size_bytes: int
    count: int
    dtype: str
    op: str  # "none" for collectives that do not reduce
    root: int  # -1 for collectives without
    out_of_place: Timing
    in_place: Timing


class Report(Struct):
    """A whole run."""

    collective: str
    workers: int
    algorithm: str
    in_network: bool = False  # whether the switch was to reduce
    rows: list[Row] = []
    wrong: int = 0
    mean_busbw: float = 0.0
    statistics: dict[str, dict[str, Any]] = {}


def parse_size(text: str) -> int:
    """Bytes from text such as ``8``, ``64K``, ``1M``; `ConfigurationError` otherwise."""
    number, unit = (text[:-1], text[-1].upper()) if text and text[-1].isalpha() else (text, "")
    if not number.isdecimal() or unit not in UNITS or int(number) == 0:
        raise ConfigurationError(f"size is {text!r}: want a positive number, with K, M or G or not, such as 64K")
    return int(number) * UNITS[unit]


def sizes(smallest: int, largest: int, factor: int) -> list[int]:
    """From `smallest` to `largest`, each `factor` times the one before."""
    if smallest > largest:
        raise ConfigurationError(f"sizes start at {smallest} and end at {largest}: the first must not be larger")
    found = [smallest]
    while factor > 1 and found[-1] * factor <= largest:
        found.append(found[-1] * factor)
    return found


def bus_factor(collective: str, workers: int) -> float:
    """busbw / algbw, as nccl-tests' PERFORMANCE.md derives it."""
    if collective == "all_reduce":
        return 2 * (workers - 1) / workers
    if collective in ("all_gather", "reduce_scatter"):
        return (workers - 1) / workers
    return 1.0


def header() -> str:
    """The three lines above the rows."""
    titles = ("size", "count", "type", "redop", "root", *(("time", "algbw", "busbw", "#wrong") * 2))
    units = ("(B)", "(elements)", "", "", "", *(("(us)", "(GB/s)", "(GB/s)", "") * 2))
    places = f"#{'':56}{'out-of-place':^31}{'in-place':^31}".rstrip()
    return "\n".join((places, (_HEADER % titles).rstrip(), (_HEADER % units).rstrip()))


def row_line(row: Row) -> str:
    """One line of the table."""
    line = _ROW % (row.size_bytes, row.count, row.dtype, row.op, row.root)
    for timing in (row.out_of_place, row.in_place):
        wrong = "N/A" if timing.wrong < 0 else str(timing.wrong)
        line += _CELL % (short(timing.mean_s * 1e6, 7), short(timing.algbw, 6), short(timing.busbw, 6), wrong)
    return line


def short(value: float, width: int) -> str:
    """A number with as many digits as fit into `width`, two decimals at most."""
    for decimals in (2, 1):
        text = f"{value:.{decimals}f}"
        if len(text) < width:
            return text
    return f"{value:.0f}"


def footer(report: Report) -> str:
    """The lines below the rows."""
    verdict = "OK" if report.wrong == 0 else "FAILED"
    return (
        f"# Out of bounds values : {report.wrong} {verdict}\n"
        f"# Avg bus bandwidth    : {report.mean_busbw:.6g}\n"
        f"# In-network reduction : {_network_line(report)}"
    )


def _network_line(report: Report) -> str:
    if not report.in_network:
        return "not used"
    engine = report.statistics["engine"]
    state = "ACTIVE" if engine["in_network_active"] else "NOT PROVEN"
    sent, ring = engine["in_network_bytes_sent"], engine["ring_bytes"]
    return f"{state}, rank 0 sent {sent:,} payload bytes where a ring would have sent {ring:,.0f}"
