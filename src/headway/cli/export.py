"""`headway export RUN -o FILE`"""

from __future__ import annotations

from pathlib import Path

import click

from headway.output.terminal import spinner


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to: a name that ends with .parquet (needs pyarrow) or .csv.",
)
def command(run: Path, output: Path) -> int:
    """Write a run's numbers as a table: one row a step, one column a signal.

    RUN is anything `headway diagnose` reads. A value that was not logged is
    empty; NaN and infinities are themselves.
    """
    from headway.postmortem.export import export

    with spinner(f"reading {run}"):
        rows = export(run, output)
    click.echo(f"{rows} steps written to {output}")
    return 0
