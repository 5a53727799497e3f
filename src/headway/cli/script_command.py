"""What `check` and `run` share: the script's arguments, its output, a line per step, machine-
readable formats.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headway.core.numbers import say
from headway.core.records import Record, StepRecord
from headway.errors import UsageError
from headway.output.terminal import TerminalPage

if TYPE_CHECKING:
    from headway.cli.user_script import Script
    from headway.report import Report


# What `check` and `run` share: the script that is meant, the rank that speaks, how it crashed,
# and the forms for machines.

Command = TypeVar("Command", bound=Callable[..., Any])


def script_arguments(command: Command) -> Command:
    """`SCRIPT [-- ARGS]`, or `-m MODULE [-- ARGS]`."""
    for decorate in (
        click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]"),
        click.argument("script", required=False, metavar="SCRIPT"),
        click.option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does."),
    ):
        command = decorate(command)
    return command


def resolve_script(script: str | None, module: str | None, args: tuple[str, ...]) -> Script:
    """The script that is meant. Raises UsageError if there is none."""
    from headway.cli.user_script import Script

    if module is not None:
        given = args if script is None else (script, *args)
        return Script(Path(module), given, module)
    if script is None:
        raise UsageError("which script? `headway check train.py`, or `-m package.module`")
    path = Path(script)
    if path.is_dir() and (path / "__main__.py").is_file():
        path = path / "__main__.py"
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"the script {script} {what}: give the file that trains")
    return Script(path.absolute(), args)


def is_first_rank() -> bool:
    """Whether this process speaks for all of them."""
    return os.environ.get("RANK", "0") in ("", "0")


def show_crash(error: BaseException) -> None:
    """The script's own traceback, without our frames."""
    from headway.cli.user_script import ScriptCrash

    ScriptCrash(error).show()


def redirect_script_output(form: str) -> AbstractContextManager[None]:
    """Machine-readable forms have stdout to themselves."""
    if form == "text":
        return nullcontext()
    from headway.cli.user_script import stdout_to_stderr

    return stdout_to_stderr()


def write_machine_format(
    report: Report, form: str, target: object, more: Mapping[str, Any]
) -> None:
    """The report as JSON with `more` beside it, as annotations of a code host, or as SARIF."""
    if form == "json":
        from headway.core.numbers import encode_numbers

        content = {**report.to_dict(), **dict(encode_numbers(dict(more)))}
        click.echo(json.dumps(content, indent=2, allow_nan=False, default=str))
    elif form == "github":
        from headway.output.code_annotations import github_commands

        for line in github_commands(report):
            click.echo(line)
    else:
        from headway.output.code_annotations import sarif_document

        click.echo(json.dumps(sarif_document([(Path(str(target)), report)]), indent=2))


# A line a step while a script runs: loss, gradient norm, rate, and how many gradients are zero or
# not finite. Told beside the output.


class StepLines:
    """Prints every n-th step."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._page = TerminalPage(sys.stderr)

    def banner(self) -> None:
        """What it runs on."""
        from headway.cli.env import torch_facts

        facts = torch_facts()
        devices = ", ".join(f"{item['device']} {item['name']}" for item in facts["devices"])
        said = f"torch {facts['version']} on {devices}, {facts['threads']} threads"
        self._page.line((said, "dim"), rest="  ")

    def __call__(self, record: Record) -> None:
        if not isinstance(record, StepRecord) or record.step % self._interval:
            return
        values = record.values
        told = [f"step {record.step:>4}"]
        for name, word in (("loss", "loss"), ("grad_norm", "grad norm"), ("lr", "lr")):
            if name in values:
                told.append(f"{word} {say(values[name], 4)}")
        if values.get("clip_coef", 1.0) < 1.0:
            told.append(f"clipped to {say(values['grad_norm'] * values['clip_coef'], 3)}")
        norms = record.columns.get("param/grad_norm")
        if norms is not None and len(norms.values) > 1:
            told.append(f"tensors {_range(norms.values)}")
            told.append(f"zero {sum(norm == 0 for norm in norms.values)}/{len(norms.values)}")
            bad = sum(not math.isfinite(norm) for norm in norms.values)
            told.append(f"NaN/Inf {bad}/{len(norms.values)}")
        if record.held:
            told.append("held back")
        print("  ".join(told), file=sys.stderr, flush=True)


def _range(norms: Sequence[float]) -> str:
    """The smallest and the largest that are numbers."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    return f"{say(min(finite), 2)}–{say(max(finite), 2)}" if finite else "none finite"


def require_torch(what: str) -> None:
    """Raise UsageError where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"{what} runs a training and needs torch, which is not installed: "
            "pip install 'headway[torch]'"
        )
