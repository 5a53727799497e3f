"""`headway check SCRIPT [-- ARGS]`"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway import registry
from headway.cli import options
from headway.cli.checks import FAMILIES
from headway.cli.exit_codes import INTERRUPTED, print_message
from headway.cli.options import FORMATS
from headway.cli.script_command import (
    is_first_rank,
    lock_run_dir,
    redirect_script_output,
    require_torch,
    resolve_script,
    script_arguments,
    show_crash,
)
from headway.core.findings import Severity
from headway.core.numbers import say, say_bytes
from headway.output.console import SEVERITY_STYLES, ReportPrinter
from headway.output.terminal import TerminalPage, spinner
from headway.output.view import plural

if TYPE_CHECKING:
    from headway.config import Settings
    from headway.preflight.runner import CheckResult


CRASHED = 3
UNREACHED = 2


@click.command()
@script_arguments
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Stop after this many steps of any optimizer.",
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
@click.option("--overfit", is_flag=True, help="Also test whether the model can overfit one batch.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the run to DIR.",
)
@options.output_format(*FORMATS)
@options.which_checks
@options.fail_on()
@options.config_file
@click.option(
    "-v", "--verbose", is_flag=True, help="Show every remedy and every check that did not run."
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
    """Run a training script for a few steps and report problems.

    \b
    The script is not changed. Arguments after `--` are passed to the script:
        headway check train.py -- --epochs 3
        headway check -m package.train -- --epochs 3
        torchrun --nproc-per-node 2 -m headway check train.py

    The script runs like `python SCRIPT` until an optimizer has made --max-steps
    steps. Exit code 3 means that the script crashed; findings are still shown.
    """
    settings = options.settings_from(config, select=select, ignore=ignore, fail_on=fail_on)
    require_torch("check")
    target = resolve_script(script, module, args)
    with spinner("loading torch"):
        from headway.preflight.runner import CheckOptions, run_check
    how = CheckOptions(
        max_steps=max_steps,
        max_seconds=max_seconds,
        max_norm=clip_grad_norm,
        amp_dtype=amp_dtype,
        detect_anomaly=detect_anomaly,
        run_dir=out,
        overfit=overfit,
    )
    lines = _step_lines(grad_log_interval)
    with lock_run_dir(out), redirect_script_output(form):
        done = run_check(target.run, settings=settings, how=how, on_record=lines)
    return _report_outcome(done, target, settings, form, verbose=verbose)


def _step_lines(interval: int) -> Any:
    if not interval or not is_first_rank():
        return None
    from headway.cli.script_command import StepLines

    lines = StepLines(interval)
    lines.banner()
    return lines


def _report_outcome(
    done: CheckResult, target: Any, settings: Settings, form: str, *, verbose: bool
) -> int:
    if done.error is not None:
        show_crash(done.error)
    if is_first_rank():
        _write_result(done, target, form, verbose=verbose)
        if done.unreached is not None and form != "text":
            print_message(str(done.unreached))
    if done.interrupted:
        return INTERRUPTED
    if done.error is not None:
        return CRASHED
    failed = done.report.fails(settings.fail_on)
    return UNREACHED if done.unreached is not None and not failed else int(failed)


def _write_result(done: CheckResult, target: Any, form: str, *, verbose: bool) -> None:
    if form == "text":
        sys.stdout.flush()
        write_check_page(done, verbose=verbose, next_command=_next_command(done, target))
        return
    more = {"steps": done.steps, **done.tables}
    if done.unreached is not None:
        more["unreached"] = str(done.unreached)
    options.print_reports(form, [(Path(str(target)), done.report)], extra=more)


def _next_command(done: CheckResult, target: Any) -> str:
    causes = [cause for cause in done.report.causes if cause.root.severity >= 20]
    if causes:
        return f"headway explain {causes[0].code}"
    if done.unreached is not None:
        return "headway check --help"
    given = " ".join(map(shlex.quote, target.argv))
    return f"headway run {target.typed}" + (f" -- {given}" if given else "")


SHOWN_OPTIMIZER_SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps")


def write_check_page(done: CheckResult, *, verbose: bool, next_command: str) -> None:
    """Print findings, model and optimizer tables, and the checklist."""
    page = TerminalPage(sys.stdout)
    if done.unreached is not None and not done.report.findings:
        page.line("headway: ", ("nothing could be checked", "bold yellow"))
        page.line(str(done.unreached), rest="  ")
        page.next(next_command)
        return
    ReportPrinter(page, verbose=verbose).write(done.report, "headway")
    if done.unreached is not None:
        page.gap()
        page.line(str(done.unreached), rest="  ")
    _tables(page, done)
    _checklist(page, done)
    page.next(next_command)


def _tables(page: TerminalPage, done: CheckResult) -> None:
    inventory = done.tables.get("inventory")
    if isinstance(inventory, Mapping):
        page.gap()
        page.line((_format_step_count(done), "dim"), rest="  ")
        for model in inventory.get("models", ()):
            _model(page, model)
        for optimizer in inventory.get("optimizers", ()):
            _optimizer(page, optimizer)
    overfit = done.tables.get("overfit")
    if isinstance(overfit, Mapping):
        _overfit(page, overfit)
    memory = done.tables.get("memory")
    if isinstance(memory, Mapping):
        _memory(page, memory)


def _format_step_count(done: CheckResult) -> str:
    import torch

    from headway.torch_adapters.lost_device import device_is_lost

    usable = torch.cuda.is_initialized() and not device_is_lost()
    device = torch.cuda.get_device_name() if usable else "CPU"
    ended = "stopped after" if done.stopped else "the script ended after"
    return f"{ended} {plural(done.steps, 'step')}; torch {torch.__version__} on {device}"


def _model(page: TerminalPage, model: Mapping[str, Any]) -> None:
    frozen = model["parameters"] - model["trainable"]
    page.line(
        (f"{model['class']}", "bold"),
        f"  {_number(model['parameters'])} parameters, "
        f"{_number(model['trainable'])} trainable, {_number(frozen)} frozen; "
        f"{_shares(model['dtypes'])} on {_shares(model['devices'])}",
        rest="    ",
    )
    parts: Sequence[Mapping[str, Any]] = model["parts"]
    width = max((len(part["name"]) for part in parts), default=0)
    for part in parts[:12]:
        state = _state(part)
        page.line(f"{part['name']:<{width}}  {_number(part['parameters']):>7}  {state}", first="  ")
    if len(parts) > 12 or model["parts_left_out"]:
        page.line((f"and {len(parts) - 12 + model['parts_left_out']} more", "dim"), first="  ")


def _state(part: Mapping[str, Any]) -> str:
    if not part["trainable"]:
        return "frozen"
    if part["trainable"] == part["parameters"]:
        return "trainable"
    return f"{_number(part['trainable'])} trainable, the rest frozen"


def _optimizer(page: TerminalPage, optimizer: Mapping[str, Any]) -> None:
    for at, group in enumerate(optimizer["groups"]):
        settings = ", ".join(
            f"{name} {_setting(group[name])}" for name in SHOWN_OPTIMIZER_SETTINGS if name in group
        )
        page.line(
            (f"{optimizer['class']} group {at}", "bold"),
            f"  {_number(group['parameters'])} in {group['tensors']} tensors; {settings}",
            rest="    ",
        )


def _memory(page: TerminalPage, memory: Mapping[str, Any]) -> None:
    phases = memory.get("phases", {})
    sizes = ", ".join(f"{name} {say_bytes(size)}" for name, size in phases.items())
    what = "Peak device memory" if memory.get("kind") == "device-peak" else "Resident memory"
    page.line((what, "bold"), f"  {sizes}", rest="    ")
    epochs = memory.get("epochs", ())
    if len(epochs) > 1:
        shown = [say_bytes(size) for size in epochs]
        if len(shown) > 8:
            shown = [*shown[:4], "…", *shown[-3:]]
        page.line((f"{what} by epoch", "bold"), f"  {', '.join(shown)}", rest="    ")


def _overfit(page: TerminalPage, found: Mapping[str, Any]) -> None:
    if "unavailable" in found:
        text = str(found["unavailable"])
    else:
        outcome = "learned" if found.get("learned") else "not learned"
        text = (
            f"loss {say(found['start'], 4)} to {say(found['end'], 4)} in {found['steps']} steps "
            f"on copies of the weights: {outcome}"
        )
    page.line(("Overfit one batch", "bold"), f"  {text}", rest="    ")


def _checklist(page: TerminalPage, done: CheckResult) -> None:
    """One line per family of checks; ticked only if it has no findings."""
    not_run = {item.code for item in done.report.not_run}
    worst: dict[str, Severity] = {}
    for finding in done.report.findings:
        family = finding.code[:3]
        worst[family] = max(finding.severity, worst.get(family, Severity.INFO))
    counts: dict[str, list[int]] = {}
    for check in registry.all_checks():
        ran, of = counts.setdefault(check.code[:3], [0, 0])
        counts[check.code[:3]] = [ran + (check.code not in not_run), of + 1]
    page.gap()
    for family, (ran, of) in counts.items():
        if family == "HD0":
            continue
        level = worst.get(family, Severity.INFO)
        bad = level >= Severity.WARNING
        mark = str(level) if bad else "good" if ran else "info"
        style = SEVERITY_STYLES[str(level)] if bad else "green" if ran else "dim"
        page.line(
            (page.mark(mark), style),
            f" {FAMILIES.get(family, family)}",
            (f"  {ran} of {of} checks ran", "dim"),
        )


def _setting(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_setting(item) for item in value) + ")"
    return say(value, 4) if isinstance(value, (int, float)) else str(value)


def _shares(counts: Mapping[str, int]) -> str:
    return ", ".join(counts) if len(counts) < 4 else f"{len(counts)} kinds"


def _number(count: int) -> str:
    for limit, word in ((10**9, "B"), (10**6, "M"), (10**4, "K")):
        if count >= limit:
            return f"{count / (limit if word != 'K' else 1000):.1f}{word}"
    return str(count)
