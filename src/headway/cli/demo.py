"""`headway demo`"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import click

from headway.cli.script_command import require_torch
from headway.errors import InternalError, UsageError

DEFAULT_OUT = Path("headway-runs", "demo")


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=DEFAULT_OUT,
    help="Where to write the run (headway-runs/demo); DIR-2, DIR-3, … if it exists already.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=20),
    default=240,
    show_default=True,
    help="How long to train.",
)
def command(out: Path, steps: int) -> int:
    """Watch a run break, and be saved. Under a minute, on a CPU.

    Trains a small transformer twice: under the guard, with a batch that makes the loss NaN, and
    without that batch. What it says it has measured first; what did not hold, it admits.
    """
    require_torch("the demo")
    from headway.output.terminal import TerminalPage, spinner

    began = time.monotonic()
    page = TerminalPage(sys.stdout)
    page.line(("headway demo: ", "bold"), "one batch goes bad, and the run goes on")
    with spinner("importing torch"):
        from headway.demo.walkthrough import DemoPrinter, DemoWalkthrough

    run_dir = create_folder(out)
    broken = DemoWalkthrough(DemoPrinter(page), run_dir, steps).run()
    if broken:
        raise InternalError(f"the demo claimed what did not hold: {'; '.join(broken)}")
    page.gap()
    page.line(f"Every line with a tick was measured, in {time.monotonic() - began:.0f} s.")
    page.line("The run is written down in ", (str(run_dir), "bold"), rest="  ")
    page.line("What the finding means: ", ("headway explain HD101", "bold"), rest="  ")
    page.next(f"headway diagnose {shlex.quote(str(run_dir))}")
    return 0


def create_folder(wanted: Path) -> Path:
    """A folder that did not exist before: the one wanted, or the next numbered one."""
    for number in range(1, 10_000):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            os.makedirs(folder)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot create {folder}: {error.strerror}") from error
        return folder
    raise UsageError(f"{wanted} and its numbered neighbours all exist: choose another --out")
