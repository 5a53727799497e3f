"""The process around a script: starts it in a child, and reports a child that vanished."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli import options
from headway.cli.exit_codes import CRASHED, OwnProcess, print_message
from headway.cli.options import is_first_rank
from headway.cli.script_command import torchrun_rank
from headway.core.numbers import plural
from headway.errors import UsageError
from headway.output.notices import Notifier
from headway.rundir.remote_run import staging_folder

if TYPE_CHECKING:
    from headway.cli.script_command import Script
    from headway.config import Settings
    from headway.guard.endings.supervisor import ChildEnd, Supervisor
    from headway.report import Report


def find_supervisor(rank: int, restarts: int = 0) -> Supervisor | None:
    """The parent of the process that trains; None where this process cannot be one."""
    from headway.guard.endings.supervisor import Supervisor, can_supervise

    if restarts and os.environ.get("TORCHELASTIC_RUN_ID"):
        raise UsageError("--restarts cannot restart all ranks: use `torchrun --max-restarts N`")
    own = click.get_current_context().find_object(OwnProcess) is not None
    if own and can_supervise():
        return Supervisor(rank, print_message)
    if restarts:
        raise UsageError(
            "--restarts needs a process of its own and an operating system with fork(), such as "
            "Linux"
        )
    return None


def join_supervisor(supervisor: Supervisor, folder: Path) -> Path:
    """In the child: end with the parent, and agree with it on the folder of the records."""
    from headway.torch_adapters.process_state.parent_process import end_with_parent

    end_with_parent(signal.SIGTERM, supervisor.pid)
    return supervisor.agree_on_folder(folder)


def files_rank(out: Path | str | None) -> int:
    """The rank in the names of the files; without a run directory each rank has its own folder."""
    return 0 if out is None else torchrun_rank()


def join_parent_of_check(supervisor: Supervisor | None, out: Path | str | None) -> Path | None:
    """In the child: the folder from which the parent reports, a new one without a run directory."""
    if supervisor is None:
        return None
    if out is None:
        return join_supervisor(supervisor, Path(tempfile.mkdtemp(prefix="headway-check-")))
    return join_supervisor(supervisor, staging_folder(out) if isinstance(out, str) else out)


def _diagnose_vanished(ended: ChildEnd, settings: Settings, command: str) -> Report | None:
    """The report that the child could not make; None if there is nothing to report."""
    if ended.run_dir is None and ended.status > 128:
        number = ended.status - 128
        print_message(f"the process was ended by signal {number} before the script started")
    if ended.recorded or ended.run_dir is None:
        return None
    from headway.postmortem.diagnose import diagnose

    report = diagnose(ended.run_dir, settings=settings)
    report = replace(report, command=command, looked_at=plural(ended.steps, "step"))
    [report] = options.suppress_known([report], settings)
    return report


def _print_vanished(
    report: Report,
    target: Script,
    form: str,
    settings: Settings,
    *,
    extra: Mapping[str, Any],
    following: str,
) -> None:
    """Print the report on a child that vanished. `following`: the command to type next."""
    if not is_first_rank():
        rank = os.environ.get("RANK", "?")
        for finding in report.findings:
            print_message(f"rank {rank}: {finding.code} {finding.name}: {finding.message}")
    elif form == "text":
        from headway.output.console import ReportPrinter
        from headway.output.terminal import TerminalPage

        page = TerminalPage(sys.stdout)
        page.begin_after_script()
        ReportPrinter(page).write(report, "headway")
        page.next(following)
    else:
        reports = [(Path(str(target)), report)]
        options.print_reports(form, reports, extra=extra, settings=settings)


def report_vanished_run(
    ended: ChildEnd,
    target: Script,
    form: str,
    settings: Settings,
    fail_on: str | None,
    notify: Sequence[str],
) -> int:
    """Print what `headway run` could not print itself; returns the exit code."""
    from headway.output.display_text import shell_quote, shorten_local_paths

    report = _diagnose_vanished(ended, settings, "run")
    if report is None:
        return ended.status
    assert ended.run_dir is not None
    if notify and is_first_rank():
        notifier = Notifier(notify, ended.run_dir.name, lambda _, text: print_message(text))
        for cause in report.causes[:1]:
            notifier.finding(cause.root)
        notifier.ended(f"ended with status {ended.status}", None)
    folder = shorten_local_paths(str(ended.run_dir))
    _print_vanished(
        report,
        target,
        form,
        replace(settings, fail_on=fail_on or "never"),
        extra={"steps": ended.steps, "run_dir": str(ended.run_dir)},
        following=f"headway diagnose {shell_quote(folder)}",
    )
    if ended.status == 0 and fail_on is not None:
        return int(report.fails(fail_on))
    return ended.status


def report_vanished_check(
    ended: ChildEnd, target: Script, form: str, settings: Settings, *, private: bool
) -> int:
    """Print what `headway check` could not print itself; returns the exit code.

    `private`: there is no run directory, so the folder of the records is removed.
    """
    try:
        report = _diagnose_vanished(ended, settings, "check")
    finally:
        if private and ended.run_dir is not None:
            shutil.rmtree(ended.run_dir, ignore_errors=True)
    if report is None:
        return ended.status
    extra: dict[str, Any] = {"steps": ended.steps}
    if not private:
        extra["run_dir"] = str(ended.run_dir)
    following = f"headway run {target.typed}{target.given}"
    if report.causes:
        following = f"headway explain {report.causes[0].code}"
    _print_vanished(report, target, form, settings, extra=extra, following=following)
    if ended.failed:
        return CRASHED
    return ended.status or int(report.fails(settings.fail_on))
