"""`netreduce soak`: randomised runs of NICs and switch in the simulator, each replayable from its seed."""

from __future__ import annotations

import gc
import secrets
import time
from typing import Annotated

import typer

SEED_BITS = 40


def soak(
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the first run; by default a fresh one.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Start no more runs after so long.")] = 60.0,
    runs: Annotated[int | None, typer.Option(min=1, help="Make exactly so many runs instead.")] = None,
) -> None:
    """Hurt rings of NICs around a switch by chance, heal them, and check that all they promise held.

    Each run is drawn from its seed: topology, message sizes, types, faults. It goes through the splicing switch and
    once more through one that only forwards. Run i has seed SEED + i. Stops at the first violation, with exit code 1,
    the command that replays it, and the tables of every node.
    """
    from netreduce.soak.draw import draw
    from netreduce.soak.run import run

    first = secrets.randbits(SEED_BITS) if seed is None else seed
    typer.echo(f"soak: seed {first}")
    begun_s = time.monotonic()
    made = frames = lost = ended = 0
    while made < runs if runs is not None else time.monotonic() - begun_s < seconds:
        drawn = draw(first + made)
        typer.echo("\n".join(drawn.lines()))
        for splice, name in ((True, "spliced"), (False, "forwarded")):
            outcome = run(drawn, splice=splice)
            typer.echo(f"  {name}: {outcome}")
            frames += outcome.frames
            lost += outcome.lost_frames
            ended += outcome.failed_by_name
            if outcome.violations:
                typer.echo("\n".join(["", *outcome.violations, "", outcome.tables, ""]))
                typer.echo(f"replay with: netreduce soak --seed {drawn.seed} --runs 1")
                raise typer.Exit(1)
        made += 1
        gc.collect()  # nodes, lines and programs know each other: their tables would pile up to gigabytes
    typer.echo(
        f"soak: {made} runs from seed {first}, {frames:,} frames, {lost:,} lost, "
        f"{ended} ended by name under harsh faults, no property violated"
    )
