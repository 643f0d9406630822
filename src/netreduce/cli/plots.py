"""Figures of sweeps, as SVG or PNG. Needs matplotlib: pip install 'netreduce[plot]'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netreduce.errors import ConfigurationError
from netreduce.flowsim.schemes import SCHEMES

AXES = {
    "ranks": ("workers", 1.0),
    "size_bytes": ("size (bytes)", 1.0),
    "step": ("latency of a step", 1.0),
    "inside": ("bandwidth inside a machine", 1.0),
}
MARKERS = "os^vDPX*<>"


def pyplot() -> Any:
    """matplotlib.pyplot without a display, with text kept as text and no date in SVG files."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError("matplotlib is not installed: pip install 'netreduce[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "netreduce", "figure.autolayout": True})
    return pyplot


def save(figure: Any, path: Path) -> None:
    """Write the figure; the same data give the same bytes."""
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, metadata=metadata, dpi=150)
    pyplot().close(figure)


def varied(rows: Sequence[dict[str, Any]]) -> str:
    """The first quantity that differs between rows: the x axis."""
    for name in AXES:
        if len({row[name] for row in rows}) > 1:
            return name
    return "ranks"


def sweep_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Time against what was varied, a line per scheme, logarithmic both ways."""
    from netreduce import quantities

    figure, axes = pyplot().subplots(figsize=(7, 4.5))
    axis = varied(rows)
    read = {"step": quantities.duration, "inside": quantities.rate}.get(axis, float)
    points = [row | {axis: read(row[axis]), "scheme": SCHEMES[row["scheme"]].title} for row in rows]
    _curves(axes, points, axis)
    save(figure, path)


def testbed_figure(runs: Sequence[Sequence[dict[str, Any]]], path: Path) -> None:
    """A panel for each run that varies something: what packets took, and dotted the closed form."""
    panels = [rows for rows in runs if len({row[varied(rows)] for row in rows}) > 1]
    if not panels:
        raise ConfigurationError("nothing to plot: no run varies machines, sizes or inside")
    figure, all_axes = pyplot().subplots(1, len(panels), figsize=(1 + 5.5 * len(panels), 4.5), squeeze=False)
    for axes, rows in zip(all_axes[0], panels, strict=True):
        axis = varied(rows)
        _curves(axes, rows, axis)
        axes.set_prop_cycle(None)  # the same colours again
        for curve in _by_scheme(rows, axis, "closed_s").values():
            axes.plot(*zip(*curve, strict=True), linestyle=":") if curve else axes.plot([])
    save(figure, path)


def _by_scheme(rows: Sequence[dict[str, Any]], axis: str, value: str) -> dict[str, list[tuple[float, float]]]:
    """Points of each scheme's curve, in order."""
    schemes = dict.fromkeys(row["scheme"] for row in rows)
    return {
        scheme: sorted((row[axis], row[value]) for row in rows if row["scheme"] == scheme and row[value])
        for scheme in schemes
    }


def _curves(axes: Any, rows: Sequence[dict[str, Any]], axis: str) -> None:
    for number, (scheme, curve) in enumerate(_by_scheme(rows, axis, "time_s").items()):
        if curve:
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(*zip(*curve, strict=True), marker=marker, label=scheme)
    axes.set(xscale="log", yscale="log", xlabel=_label(axis), ylabel="all-reduce time (s)")
    axes.grid(alpha=0.3)
    axes.legend()


def _label(axis: str) -> str:
    unit = {"step": " (s)", "inside": " (bytes/s)"}.get(axis, "")
    return AXES[axis][0] + unit
