"""A plan as text for one screen and as one HTML page without anything to load."""

from __future__ import annotations

from html import escape

from netreduce.flowsim.plan.advice import LITTLE, Plan
from netreduce.quantities import show_time

BAR_WIDTH = 520
BAR_HEIGHT = 22

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: right; padding: .25rem .8rem; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.key { display: inline-block; width: .9em; height: .9em; margin: 0 .3em 0 1em; vertical-align: -.1em; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } th, td { border-color: #444; } }
"""
COMPUTE, WAIT = "#4878a8", "#d1703c"


def verdict(plan: Plan) -> str:
    """The answer in one sentence."""
    usable = [option for option in plan.options if option.price]
    best = min(usable, key=lambda option: option.iteration_s, default=None)
    if best is None:
        return "No scheme can run on this cluster."
    gain = plan.speedup(best)
    if gain < 1 + LITTLE:
        return f"Hardly: nothing here would speed up {plan.subject} by more than {gain - 1:.1%}."
    in_network = next((option for option in usable if option.price and option.price.memory_bytes), None)
    if in_network is None or best.scheme != in_network.scheme:
        return f"{best.title} would be best: {gain:.2f}x compared with {plan.base_name}."
    return f"Yes: {best.title} would make an iteration {gain:.2f}x as fast as {plan.base_name}."


def rows(plan: Plan) -> list[tuple[str, str, str, str, str]]:
    """(scheme, communication, waiting, iteration, speed-up) of the base and every option."""
    found = [(plan.base_name, "", show_time(plan.base_exposed_s), show_time(plan.base_s), "1.00x")]
    for option in plan.options:
        if option.price is None:
            found.append((option.title, "refused", "", "", ""))
        else:
            times = (option.communication_s, option.exposed_s, option.iteration_s)
            communication, waiting, total = map(show_time, times)
            found.append((option.title, communication, waiting, total, f"{plan.speedup(option):.2f}x"))
    return found if plan.base_name == "measured" else found[1:]


HEADINGS = ("scheme", "communication", "waiting", "iteration", "speed-up")


def text(plan: Plan) -> str:
    """One screen."""
    table = [HEADINGS, *rows(plan)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines = [f"{plan.subject} on {plan.cluster}", "", verdict(plan), ""]
    lines += ["  ".join(_aligned(row, widths)) for row in table]
    for heading, items in _sections(plan):
        lines += ["", f"{heading}:", *(f"  - {item}" for item in items)]
    return "\n".join(lines) + "\n"


def _sections(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    sections = [("Why", plan.reasons), ("Where it does not pay", plan.limits), ("Given", plan.assumptions)]
    return [(heading, items) for heading, items in sections if items]


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    return [cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip


def html(plan: Plan) -> str:
    """One page: the verdict, a bar per scheme, the table, and the reasons."""
    title = escape(f"{plan.subject} on {plan.cluster}")
    cells = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in [("th", HEADINGS), *(("td", row) for row in rows(plan))]
    )
    lists = "".join(
        f"<h2>{heading}</h2><ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
        for heading, items in _sections(plan)
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><p><strong>{escape(verdict(plan))}</strong></p>{_bars(plan)}<table>{cells}</table>{lists}</html>\n"
    )


def _bars(plan: Plan) -> str:
    """Computing and waiting of every scheme, on one scale."""
    entries = [(o.title, o.iteration_s - o.exposed_s, o.exposed_s) for o in plan.options if o.price]
    if plan.base_name == "measured":
        entries.insert(0, ("measured", plan.base_s - plan.base_exposed_s, plan.base_exposed_s))
    scale = BAR_WIDTH / max((compute + wait for _, compute, wait in entries), default=1.0)
    parts = []
    for number, (title, compute, wait) in enumerate(entries):
        y = number * (BAR_HEIGHT + 8)
        parts.append(
            f'<text x="0" y="{y + 16}" fill="currentColor">{escape(title)}</text>'
            f'<rect x="180" y="{y}" width="{compute * scale:.1f}" height="{BAR_HEIGHT}" fill="{COMPUTE}"/>'
            f'<rect x="{180 + compute * scale:.1f}" y="{y}" width="{wait * scale:.1f}" height="{BAR_HEIGHT}"'
            f' fill="{WAIT}"/>'
        )
    height = len(entries) * (BAR_HEIGHT + 8)
    return (
        f'<p><span class="key" style="background:{COMPUTE}"></span>computing'
        f'<span class="key" style="background:{WAIT}"></span>waiting for the network</p>'
        f'<svg viewBox="0 0 {180 + BAR_WIDTH} {height}" width="100%" role="img"'
        f' aria-label="Time of an iteration by scheme">{"".join(parts)}</svg>'
    )
