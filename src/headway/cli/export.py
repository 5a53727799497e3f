"""`headway export RUN -o FILE`"""

from __future__ import annotations

from pathlib import Path

import click

from headway.cli import options
from headway.output.terminal import spinner


@click.command()
@click.argument("run", metavar="RUN", type=options.RunPath())
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to FILE, which ends with .csv or .parquet (needs pyarrow).",
)
def command(run: Path, output: Path) -> int:
    """Export a run as a table: one row per step, one column per signal.

    RUN is anything `headway diagnose` reads. Values that were not logged are
    empty; NaN and infinities are kept.
    """
    from headway.postmortem.export import export

    with spinner(f"reading {run}"):
        rows = export(run, output)
    click.echo(f"{rows} steps written to {output}")
    return 0
