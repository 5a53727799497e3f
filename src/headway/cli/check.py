"""`headway check SCRIPT [-- ARGS]`"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli import options
from headway.cli.demo import demand_torch
from headway.cli.exits import INTERRUPTED, tell
from headway.cli.launched import (
    first_rank,
    script_output,
    show_crash,
    target_arguments,
    target_of,
    write_for_machines,
)
from headway.cli.waiting import waiting

if TYPE_CHECKING:
    from headway.config import Settings
    from headway.preflight.check_run import Checked

CRASHED = 3
UNREACHED = 2


@click.command()
@target_arguments
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Stop when some optimizer has made so many steps.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="Stop after so many seconds.",
)
@click.option(
    "--amp-dtype",
    type=click.Choice(["bf16", "fp16", "none"]),
    default=None,
    help="Run under autocast in this dtype, or without any autocast.  [default: as the script]",
)
@click.option(
    "--grad-log-interval",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Print loss and gradient norms of every N-th step while it runs; 0: do not.",
)
@click.option(
    "--detect-anomaly/--no-detect-anomaly",
    default=None,
    help="Torch's own anomaly mode, on or off.  [default: as the script]",
)
@click.option(
    "--clip-grad-norm",
    type=click.FloatRange(0, min_open=True),
    metavar="NORM",
    help="Clip gradients to this norm, as clip_grad_norm_ would.",
)
@click.option("--overfit", is_flag=True, help="Also try to learn one batch by heart.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Keep the run."
)
@options.output_format("text", "json", "github", "sarif")
@options.which_checks
@options.fail_on
@options.config_file
@click.option(
    "-v", "--verbose", is_flag=True, help="Show all of it: every remedy, every check not run."
)
def command(
    script: str | None,
    args: tuple[str, ...],
    module: str | None,
    max_steps: int,
    max_seconds: float | None,
    amp_dtype: str | None,
    grad_log_interval: int,
    detect_anomaly: bool | None,
    clip_grad_norm: float | None,
    overfit: bool,
    out: Path | None,
    form: str,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    config: Path | None,
    verbose: bool,
) -> int:
    """Run a training script for a few steps and say what is wrong with it.

    \b
    The script is not changed. What follows `--` is the script's own:
        headway check train.py -- --epochs 3
        headway check -m package.train -- --epochs 3
        torchrun --nproc-per-node 2 -m headway check train.py

    It runs as `python SCRIPT` would, until some optimizer has made --max-steps
    steps. Exit code 3: the script itself crashed; findings are shown all the
    same.
    """
    settings = options.settings_from(config, select=select, ignore=ignore, fail_on=fail_on)
    demand_torch("check")
    target = target_of(script, module, args)
    with waiting("loading torch"):
        from headway.preflight.check_run import How, watch
    how = How(
        max_steps=max_steps,
        max_seconds=max_seconds,
        max_norm=clip_grad_norm,
        amp_dtype=amp_dtype,
        detect_anomaly=detect_anomaly,
        run_dir=out,
        overfit=overfit,
    )
    lines = _step_lines(grad_log_interval)
    with script_output(form):
        done = watch(target.run, settings=settings, how=how, on_record=lines)
    return _tell_outcome(done, target, settings, form, verbose=verbose)


def _step_lines(interval: int) -> Any:
    if not interval or not first_rank():
        return None
    from headway.cli.step_lines import StepLines

    lines = StepLines(interval)
    lines.banner()
    return lines


def _tell_outcome(
    done: Checked, target: Any, settings: Settings, form: str, *, verbose: bool
) -> int:
    if done.error is not None:
        show_crash(done.error)
    if first_rank():
        _write(done, target, form, verbose=verbose)
        if done.unreached is not None and form != "text":
            tell(str(done.unreached))
    if done.interrupted:
        return INTERRUPTED
    if done.error is not None:
        return CRASHED
    failed = done.report.fails(settings.fail_on)
    return UNREACHED if done.unreached is not None and not failed else int(failed)


def _write(done: Checked, target: Any, form: str, *, verbose: bool) -> None:
    if form == "text":
        from headway.cli.check_page import write

        sys.stdout.flush()
        write(done, verbose=verbose, next_command=_next(done, target))
        return
    more = {"steps": done.steps, **done.tables}
    if done.unreached is not None:
        more["unreached"] = str(done.unreached)
    write_for_machines(done.report, form, target, more)


def _next(done: Checked, target: Any) -> str:
    causes = [cause for cause in done.report.causes if cause.root.severity >= 20]
    if causes:
        return f"headway explain {causes[0].code}"
    if done.unreached is not None:
        return "headway check --help"
    given = " ".join(map(shlex.quote, target.argv))
    return f"headway run {target.said}" + (f" -- {given}" if given else "")
