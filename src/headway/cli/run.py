"""`headway run SCRIPT [-- ARGS]`"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli import options
from headway.cli.exit_codes import print_message
from headway.cli.options import FORMATS, is_first_rank
from headway.cli.script_command import (
    StepProgress,
    absolute_run_dir,
    keep_stdout_clean,
    lock_run_dir,
    redirect_script_output,
    require_torch,
    resolve_script,
    script_arguments,
    show_crash,
    torchrun_rank,
)
from headway.cli.supervised_script import (
    find_supervisor,
    join_supervisor,
    report_vanished_run,
)
from headway.output.notices import notification_targets
from headway.output.terminal import spinner
from headway.rundir.remote_run import staging_folder
from headway.rundir.run_lock import start_time

if TYPE_CHECKING:
    from headway.cli.script_command import Script
    from headway.config import Settings
    from headway.guard.endings.supervisor import Supervisor
    from headway.guard.script.guarded_run import GuardedRunResult

RUNS = Path("headway-runs")


@click.command()
@script_arguments
@click.option(
    "--clip-grad-norm",
    type=click.FloatRange(0, min_open=True),
    metavar="NORM",
    help="Clip gradients to this norm, like clip_grad_norm_.",
)
@click.option(
    "--out",
    type=options.RunPath(written=True),
    metavar="DIR",
    help="Write the run to DIR.  [default: headway-runs/SCRIPT-TIME]",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Start the script again after a crash or a kill, up to N times.",
)
@click.option(
    "--notify",
    multiple=True,
    metavar="CMD|URL",
    help="Send findings and the end of the run to a webhook, or to a command's standard input.",
)
@click.option(
    "--require-guard",
    is_flag=True,
    help="Exit with code 1 if no update of the script was guarded.",
)
@click.option("--progress", is_flag=True, help="Show the step and the time on a terminal.")
@options.output_format(*FORMATS)
@options.which_checks
@options.fail_on(default="never")
@options.known_findings
@options.config_file
def command(
    script: str | None,
    args: tuple[str, ...],
    module: str | None,
    clip_grad_norm: float | None,
    out: Path | str | None,
    restarts: int,
    notify: tuple[str, ...],
    require_guard: bool,
    progress: bool,
    form: str,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    baseline: str | None,
    write_baseline: bool,
    config: Path | None,
) -> int:
    """Run a training script under the guard, without changing it.

    \b
        headway run train.py -- --epochs 3
        torchrun --nproc-per-node 2 -m headway run train.py

    Every step is measured, bad updates are skipped, and the run is recorded for
    `headway diagnose`. Losses and weights of a healthy run stay bit-identical.
    The exit code is that of the script; with --fail-on, findings change it to 1. If
    no optimizer step is guarded, the first line says so; --require-guard makes it an
    error.
    """
    settings = options.settings_from(
        config, select=select, ignore=ignore, fail_on=fail_on, baseline=baseline
    )
    require_torch("run")
    notification_targets(notify)  # a command that does not exist is a mistake of now
    target = resolve_script(script, module, args)
    launcher = os.getppid()
    supervisor = find_supervisor(torchrun_rank(), restarts)
    if supervisor is not None and (ended := supervisor.run(restarts)) is not None:
        return report_vanished_run(ended, target, form, settings, fail_on, notify)
    with spinner("loading torch", delay_s=0):
        from headway.guard.endings.failure import worker_signals_ignored
        from headway.guard.endings.save_failure import LateSaves
        from headway.guard.script.guarded_run import run_guarded
        from headway.integrations.automatic import run_with_callbacks
    folder = _choose_folder(target, launcher) if out is None else absolute_run_dir(out)
    if supervisor is not None:
        # The parent watches the local files of a run in a store.
        local = staging_folder(folder) if isinstance(folder, str) else folder
        agreed = join_supervisor(supervisor, local)
        folder = folder if isinstance(folder, str) else agreed
    late = None if supervisor is None else LateSaves()
    steps = StepProgress() if progress and is_first_rank() else None
    with (
        lock_run_dir(folder),
        redirect_script_output(form),
        steps.line.among_output() if steps is not None else nullcontext(),
    ):
        done = run_guarded(
            partial(run_with_callbacks, target.run),
            settings=settings,
            run_dir=folder,
            max_norm=clip_grad_norm,
            on_record=steps,
            notify=notify,
        )
    [done.report] = options.suppress_known([done.report], settings, write=write_baseline)
    with worker_signals_ignored():
        status = _report_outcome(done, folder, target, form, settings, fail_on, supervisor)
    if late is not None and done.status == 0 and isinstance(folder, Path):
        late.watch(folder, rank=torchrun_rank(), steps=done.steps)
    if supervisor is not None and form != "text":
        keep_stdout_clean()
    return 1 if status == 0 and require_guard and done.unreached is not None else status


def _report_outcome(
    done: GuardedRunResult,
    folder: Path | str,
    target: Script,
    form: str,
    settings: Settings,
    fail_on: str | None,
    supervisor: Supervisor | None,
) -> int:
    if done.error is not None:
        show_crash(done.error)
    again = supervisor is not None and supervisor.starts_again(done.status)
    if is_first_rank():
        if form == "text":
            _write(done, folder, target)
        elif again:
            pass  # one report, that of the last attempt
        else:
            extra = _extra_keys(done, folder)
            reports = [(Path(str(target)), done.report)]
            options.print_reports(form, reports, extra=extra, settings=_judged(settings, fail_on))
    if done.status == 0 and fail_on is not None:
        return int(done.report.fails(fail_on))
    return done.status


def _judged(settings: Settings, fail_on: str | None) -> Settings:
    """The settings with the severity that fails: `run` ignores that of the settings file."""
    return replace(settings, fail_on=fail_on or "never")


def _choose_folder(target: Script, launcher: int) -> Path:
    """A new folder for this run. Under torchrun all ranks, and its later attempts, use the same.

    `launcher`: the process number of torchrun, if it has started this one.
    """
    from headway.torch_adapters.process_groups.rank_group import chosen_by_rank_zero

    began = time.time()
    if os.environ.get("TORCHELASTIC_RUN_ID"):
        # torchrun starts the workers again after a failure: its own start identifies the run.
        began = start_time(launcher) or began
    name = f"{Path(str(target)).stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(began))}"
    return Path(chosen_by_rank_zero("run_dir", str((RUNS / name).absolute())))


def _extra_keys(done: GuardedRunResult, folder: Path | str) -> dict[str, Any]:
    """The keys of the JSON output besides the report."""
    more: dict[str, Any] = {
        "steps": done.steps,
        "actions": [action.to_dict() for action in done.actions],
        "run_dir": str(folder),
    }
    if done.unreached is not None:
        more["unreached"] = str(done.unreached)
        print_message(str(done.unreached))
    return more


def _write(done: GuardedRunResult, folder: Path | str, target: Script) -> None:
    from headway.core.numbers import plural
    from headway.output.console import ReportPrinter
    from headway.output.display_text import shell_quote, shorten_local_paths
    from headway.output.terminal import TerminalPage

    sys.stdout.flush()
    page = TerminalPage(sys.stdout)
    page.begin_after_script()
    if done.unreached is not None and not done.unreached.partly:
        page.line("headway: ", ("nothing was guarded", "bold yellow"))
        page.line(str(done.unreached), rest="  ")
        others = [item for item in done.report.findings if item.code != "HD003"]
        if others:
            page.gap()
            ReportPrinter(page).write(done.report.with_findings(others), "headway")
        page.next(f"headway check {target.typed}{target.given}")
        return
    ReportPrinter(page).write(done.report, "headway")
    skipped = sum(action.rung.value == "skip" for action in done.actions)
    if skipped:
        page.line((f"{plural(skipped, 'update')} skipped", "dim"))
    if done.unreached is not None and skipped:  # only `check` can name the op
        page.next(f"headway check {target.typed}{target.given}")
        return
    page.next(f"headway diagnose {shell_quote(shorten_local_paths(str(folder)))}")
