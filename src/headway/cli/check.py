"""`headway check SCRIPT [-- ARGS]`"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli import options
from headway.cli.check_page import write_check_page
from headway.cli.exit_codes import CRASHED, INTERRUPTED, print_message
from headway.cli.fix import (
    FixRequest,
    ReportedLosses,
    apply_fixes,
    fix_options,
    mark_tested,
    write_fixes,
)
from headway.cli.options import FORMATS, is_first_rank
from headway.cli.script_command import (
    StepProgress,
    absolute_run_dir,
    lock_run_dir,
    redirect_script_output,
    require_torch,
    resolve_script,
    script_arguments,
    show_crash,
)
from headway.cli.supervised_script import (
    files_rank,
    find_supervisor,
    join_parent_of_check,
    report_vanished_check,
)
from headway.errors import UsageError
from headway.output.terminal import spinner

if TYPE_CHECKING:
    from headway.cli.fix import FixResult
    from headway.cli.script_command import Script
    from headway.config import Settings
    from headway.fix.fresh_run import FreshRun
    from headway.preflight.runner import CheckOptions, CheckResult


UNREACHED = 2


@click.command()
@script_arguments
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after N steps of any optimizer.  [default: about 30 s of steps, at most 400]",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="Stop after S seconds.",
)
@click.option(
    "--amp-dtype",
    type=click.Choice(["bf16", "fp16", "none"]),
    default=None,
    help="Run under autocast with this dtype, or without autocast.  [default: as in the script]",
)
@click.option(
    "--grad-log-interval",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Print loss and gradient norms every N steps; 0 to disable.",
)
@click.option(
    "--detect-anomaly/--no-detect-anomaly",
    default=None,
    help="Turn torch's anomaly mode on or off.  [default: as in the script]",
)
@click.option(
    "--clip-grad-norm",
    type=click.FloatRange(0, min_open=True),
    metavar="NORM",
    help="Clip gradients to this norm, like clip_grad_norm_.",
)
@click.option("--fix", is_flag=True, help="Test edits for the findings and write those that work.")
@fix_options
@click.option("--overlay", type=click.Path(path_type=Path), hidden=True)
@click.option("--overfit", is_flag=True, help="Also test whether the model can overfit one batch.")
@click.option(
    "--out",
    type=options.RunPath(written=True),
    metavar="DIR",
    help="Write the run to DIR.",
)
@options.output_format(*FORMATS)
@options.which_checks
@options.fail_on()
@options.known_findings
@options.config_file
@click.option(
    "-v", "--verbose", is_flag=True, help="Show every remedy and every check that did not run."
)
def command(
    script: str | None,
    args: tuple[str, ...],
    module: str | None,
    max_steps: int | None,
    max_seconds: float | None,
    amp_dtype: str | None,
    grad_log_interval: int,
    detect_anomaly: bool | None,
    clip_grad_norm: float | None,
    fix: bool,
    diff: bool,
    unsafe: bool,
    overlay: Path | None,
    overfit: bool,
    out: Path | str | None,
    form: str,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    baseline: str | None,
    write_baseline: bool,
    config: Path | None,
    verbose: bool,
) -> int:
    """Run a training script for a few steps and report problems.

    \b
    The script is not changed. Arguments after `--` are passed to the script:
        headway check train.py -- --epochs 3
        headway check -m package.train -- --epochs 3
        torchrun --nproc-per-node 2 -m headway check train.py

    The script runs like `python SCRIPT` for about 30 seconds of steps, or until
    --max-steps or --max-seconds. Exit code 3 means that the script crashed;
    findings are still shown.

    --fix tests an edit of the source for each finding in a fresh process. It writes an
    edit only if the finding is gone and no new one appears. --diff writes nothing.
    """
    if unsafe and not (fix or diff):
        raise UsageError("--unsafe needs --fix or --diff")
    if write_baseline and (fix or diff):
        raise UsageError("--write-baseline cannot be combined with --fix or --diff")
    started, began = time.time(), time.monotonic()
    settings = options.settings_from(
        config, select=select, ignore=ignore, fail_on=fail_on, baseline=baseline
    )
    require_torch("check")
    target = resolve_script(script, module, args)
    supervisor = find_supervisor(files_rank(out)) if overlay is None else None
    if supervisor is not None and (ended := supervisor.run()) is not None:
        return report_vanished_check(ended, target, form, settings, private=out is None)
    with spinner("loading torch", delay_s=0):
        from headway.fix.fresh_run import overlay_from
        from headway.fix.proposals import propose_edits
        from headway.integrations.automatic import run_with_callbacks
        from headway.preflight.runner import CheckOptions, run_check
        from headway.torch_adapters.rng import seed_all
    out = out and absolute_run_dir(out)
    how = CheckOptions(
        **_limits(max_steps, max_seconds),
        max_norm=clip_grad_norm,
        amp_dtype=amp_dtype,
        detect_anomaly=detect_anomaly,
        run_dir=out,
        supervised_in=join_parent_of_check(supervisor, out),
        overfit=overfit,
    )
    progress = StepProgress(how.max_steps, how.max_seconds, how.warm_seconds)
    losses = ReportedLosses(_step_lines(grad_log_interval) or _shown(progress))
    again = _fresh_run(target, how, config, select, ignore, settings.baseline)
    if fix or diff:
        seed_all(0)  # as every fresh run does
    with lock_run_dir(out), redirect_script_output(form), overlay_from(overlay):
        with progress.line.among_output():
            progress.line.show(
                f"headway: running {target.module or target.file.name}", at_once=True
            )
            done = run_check(
                partial(run_with_callbacks, target.run),
                settings=settings,
                how=how,
                on_record=losses,
                on_finding=progress.found if is_first_rank() else None,
            )
        done.report = propose_edits(done.report, target.file)
        [done.report] = options.suppress_known(
            [done.report],
            settings,
            write=write_baseline,
            files=_sources(target),
        )
    more = {"losses": losses.rows} if overlay is not None else {"ran": _describe(again, target)}
    if not (fix or diff) or done.interrupted:
        return _report_outcome(done, target, settings, form, verbose=verbose, more=more)
    if not is_first_rank():
        return 0  # an exit code of 1 would make torchrun end the rank that tests the edits
    again = replace(again, timeout_s=max(again.timeout_s, 10 * (time.monotonic() - began)))
    request = FixRequest(target.file, again, write=not diff, unsafe=unsafe, since=started)
    return _fix(done, losses, request, settings, form, target, verbose=verbose)


def _fix(
    done: CheckResult,
    losses: ReportedLosses,
    request: FixRequest,
    settings: Settings,
    form: str,
    target: Script,
    *,
    verbose: bool,
) -> int:
    """Test and write edits, and report them after the findings."""
    from headway.fix.fresh_run import RunResult, read_losses

    if done.error is not None:
        show_crash(done.error)
    if form == "text":
        sys.stdout.flush()
        page = write_check_page(done, verbose=verbose)
    report = {**done.report.to_dict(), "steps": done.steps}
    first = RunResult(report, read_losses(losses.rows), str(done.error or ""))
    result = apply_fixes(request, first)
    if form == "text":
        write_fixes(page, result, diff=not request.write)
        page.next(_command_after_fix(result, request, target))
    else:
        done.report = mark_tested(done.report, result)
        fixes = {
            "fixes": [item.to_dict() for item in result.outcomes],
            "written": result.written,
            "restored": result.restored,
        }
        _write_result(done, target, form, settings, verbose=verbose, more=fixes)
    if done.error is not None and not result.kept:
        return CRASHED
    return int(result.fails(settings.fail_on))


def _command_after_fix(result: FixResult, request: FixRequest, target: Script) -> str:
    if result.kept and not request.write:
        return f"headway check --fix {target.typed}"
    left = [item["code"] for item in result.report["findings"] if item["severity"] != "info"]
    if left:
        return f"headway explain {left[0]}"
    return f"headway run {target.typed}{target.given}"


def _fresh_run(
    target: Script,
    how: CheckOptions,
    config: Path | None,
    select: Sequence[str],
    ignore: Sequence[str],
    baseline: str,
) -> FreshRun:
    """The same check in a process of its own."""
    from headway.fix.fresh_run import FreshRun

    given = {
        "--max-steps": how.max_steps,
        "--max-seconds": how.max_seconds,
        "--amp-dtype": how.amp_dtype,
        "--clip-grad-norm": how.max_norm,
        "--config": None if config is None else config.absolute(),
        "--select": ",".join(select) or None,
        "--ignore": ",".join(ignore) or None,
        "--baseline": os.path.abspath(baseline) if baseline else None,
    }
    words = [text for name, value in given.items() if value is not None for text in (name, value)]
    if how.detect_anomaly is not None:
        words.append("--detect-anomaly" if how.detect_anomaly else "--no-detect-anomaly")
    words += ["--overfit"] if how.overfit else []
    words += ["-m", target.module] if target.module is not None else [target.file]
    ranks = int(os.environ.get("WORLD_SIZE") or 1)
    return FreshRun("check", [*map(str, words)], target.argv, cwd=os.getcwd(), ranks=ranks)


def _sources(target: Script) -> list[str]:
    """The script, and the modules it has imported from its own folder."""
    folder = target.file.absolute().parent if target.module is None else Path.cwd()
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    own = [
        file
        for file in files
        if isinstance(file, str)
        and file.endswith(".py")
        and Path(file).is_relative_to(folder)
        and "site-packages" not in Path(file).parts
    ]
    first = [] if target.module is not None else [str(target.file)]
    return list(dict.fromkeys([*first, *own]))


def _describe(again: FreshRun, target: Script) -> dict[str, Any]:
    """What `headway fix REPORT.json` needs to run the check again."""
    return {
        "script": str(target.file),
        "arguments": list(again.arguments),
        "script_arguments": list(again.script_arguments),
        "cwd": again.cwd,
        "ranks": again.ranks,
    }


WARM_SECONDS, MOST_STEPS, RANK_STEPS = 30.0, 400, 20
"""The default budget: seconds of steps after the first, and steps; ranks must stop at one step, so
with several the steps alone are limited."""


def _limits(max_steps: int | None, max_seconds: float | None) -> dict[str, Any]:
    if max_steps is not None or max_seconds is not None:
        return {"max_steps": max_steps, "max_seconds": max_seconds}
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return {"max_steps": RANK_STEPS}
    return {"max_steps": MOST_STEPS, "warm_seconds": WARM_SECONDS}


def _step_lines(interval: int) -> Any:
    if not interval or not is_first_rank():
        return None
    from headway.cli.script_command import StepLines

    lines = StepLines(interval)
    lines.banner()
    return lines


def _shown(progress: StepProgress) -> StepProgress | None:
    return progress if progress.line.live and is_first_rank() else None


def _report_outcome(
    done: CheckResult,
    target: Script,
    settings: Settings,
    form: str,
    *,
    verbose: bool,
    more: Mapping[str, Any],
) -> int:
    if done.error is not None:
        show_crash(done.error)
    if is_first_rank():
        _write_result(done, target, form, settings, verbose=verbose, more=more)
        if done.unreached is not None and form != "text":
            print_message(str(done.unreached))
    if done.interrupted:
        return INTERRUPTED
    if done.error is not None:
        return CRASHED
    failed = done.report.fails(settings.fail_on)
    nothing = done.unreached is not None and not done.passes
    return UNREACHED if nothing and not failed else int(failed)


def _write_result(
    done: CheckResult,
    target: Script,
    form: str,
    settings: Settings,
    *,
    verbose: bool,
    more: Mapping[str, Any],
) -> None:
    if form == "text":
        sys.stdout.flush()
        write_check_page(done, verbose=verbose).next(_next_command(done, target))
        return
    more = {"steps": done.steps, **done.tables, **more}
    if done.unreached is not None:
        more["unreached"] = str(done.unreached)
    reports = [(Path(str(target)), done.report)]
    options.print_reports(form, reports, extra=more, settings=settings)


def _next_command(done: CheckResult, target: Script) -> str:
    causes = [cause for cause in done.report.causes if cause.root.severity >= 20]
    if any(remedy.edits and remedy.safe for cause in causes for remedy in cause.root.remedies):
        return f"headway check --fix {target.typed}{target.given}"
    if causes:
        return f"headway explain {causes[0].code}"
    if done.unreached is not None and not done.passes:
        return f"headway check {target.typed} -- ARGUMENTS"
    return f"headway run {target.typed}{target.given}"
