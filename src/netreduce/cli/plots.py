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

    axis = varied(rows)
    plot = pyplot()
    figure, axes = plot.subplots(figsize=(7, 4.5))
    read = {"step": quantities.duration, "inside": quantities.rate}.get(axis, float)
    for number, scheme in enumerate(dict.fromkeys(row["scheme"] for row in rows)):
        curve = sorted((read(row[axis]), row["time_s"]) for row in rows if row["scheme"] == scheme and row["time_s"])
        if curve:
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(*zip(*curve, strict=True), marker=marker, label=SCHEMES[scheme].title)
    axes.set(xscale="log", yscale="log", xlabel=_label(axis), ylabel="all-reduce time (s)")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def _label(axis: str) -> str:
    unit = {"step": " (s)", "inside": " (bytes/s)"}.get(axis, "")
    return AXES[axis][0] + unit
