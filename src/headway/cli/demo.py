"""`headway demo`"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from headway.cli.script_command import require_torch
from headway.errors import InternalError, UsageError
from headway.output.display_text import shell_quote

DEFAULT_OUT = Path("headway-runs", "demo")


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=DEFAULT_OUT,
    help="Write the run to DIR, or DIR-2, DIR-3, … if it exists.  [default: headway-runs/demo]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=20),
    default=240,
    show_default=True,
    help="Number of training steps.",
)
def command(out: Path, steps: int) -> int:
    """Watch a run fail and recover. Takes about a minute on a CPU.

    Trains a small transformer twice: under the guard with a batch that makes the loss NaN, and
    without that batch. Every claim is measured before it is printed.
    """
    require_torch("the demo")
    from headway.output.terminal import TerminalPage, spinner

    began = time.monotonic()
    page = TerminalPage(sys.stdout)
    page.line(("headway demo: ", "bold"), "one bad batch, and the run continues")
    with spinner("importing torch"):
        from headway.demo.walkthrough import DemoPrinter, DemoWalkthrough

    run_dir = create_folder(out)
    broken = DemoWalkthrough(DemoPrinter(page), run_dir, steps).run()
    if broken:
        raise InternalError(f"claims of the demo did not hold: {'; '.join(broken)}")
    page.gap()
    page.line(f"Every line with a tick was measured; it took {time.monotonic() - began:.0f} s.")
    page.line("The run was written to ", (str(run_dir), "bold"), rest="  ")
    page.line("What the finding means: ", ("headway explain HD101", "bold"), rest="  ")
    page.next(f"headway diagnose {shell_quote(str(run_dir))}")
    return 0


def create_folder(wanted: Path) -> Path:
    """Create a new folder: the given one, or the next numbered one."""
    for number in range(1, 10_000):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            os.makedirs(folder)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot create {folder}: {error.strerror}") from error
        return folder
    raise UsageError(f"{wanted} and all its numbered variants exist: choose another --out")
