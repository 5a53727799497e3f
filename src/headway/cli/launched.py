"""What `check` and `run` share: the script that is meant, the rank that speaks, how it crashed,
and the forms for machines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.cli.script import Script
    from headway.report import Report

Command = TypeVar("Command", bound=Callable[..., Any])


def target_arguments(command: Command) -> Command:
    """`SCRIPT [-- ARGS]`, or `-m MODULE [-- ARGS]`."""
    for decorate in (
        click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]"),
        click.argument("script", required=False, metavar="SCRIPT"),
        click.option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does."),
    ):
        command = decorate(command)
    return command


def target_of(script: str | None, module: str | None, args: tuple[str, ...]) -> Script:
    """The script that is meant. Raises UsageError if there is none."""
    from headway.cli.script import Script

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


def first_rank() -> bool:
    """Whether this process speaks for all of them."""
    return os.environ.get("RANK", "0") in ("", "0")


def show_crash(error: BaseException) -> None:
    """The script's own traceback, without our frames."""
    from headway.cli.script import Crash

    Crash(error).show()


def script_output(form: str) -> AbstractContextManager[None]:
    """Machine-readable forms have stdout to themselves."""
    if form == "text":
        return nullcontext()
    from headway.cli.script import output_aside

    return output_aside()


def write_for_machines(report: Report, form: str, target: object, more: Mapping[str, Any]) -> None:
    """The report as JSON with `more` beside it, as annotations of a code host, or as SARIF."""
    if form == "json":
        from headway.core.numbers import encode_numbers

        content = {**report.to_dict(), **dict(encode_numbers(dict(more)))}
        click.echo(json.dumps(content, indent=2, allow_nan=False, default=str))
    elif form == "github":
        from headway.sinks.github import commands

        for line in commands(report):
            click.echo(line)
    else:
        from headway.sinks.sarif import document

        click.echo(json.dumps(document([(Path(str(target)), report)]), indent=2))
