"""`holdfast check SCRIPT [-- ARGS]`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from holdfast.cli import options
from holdfast.errors import UsageError


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--max-steps", type=click.IntRange(1), default=3, show_default=True)
@click.option("--max-seconds", type=click.FloatRange(0, min_open=True))
@options.output_format("text", "json", "github", "sarif")
@options.which_checks
@options.fail_on
@options.config_file
def command(
    script: Path,
    args: tuple[str, ...],
    max_steps: int,
    max_seconds: float | None,
    form: str,
    select: Sequence[str],
    ignore: Sequence[str],
    fail_on: str | None,
    config: Path | None,
) -> int:
    """Run a training script for a few steps and say what is wrong with it."""
    from holdfast.cli.script import Script, output_aside
    from holdfast.preflight.check_run import watch

    if not script.is_file():
        raise UsageError(f"there is no script {script}")
    settings = options.settings_from(config, select=select, ignore=ignore, fail_on=fail_on)
    target = Script(script.absolute(), args)
    with output_aside():
        done = watch(target.run, settings=settings, max_steps=max_steps, max_seconds=max_seconds)
    if not done.speaks:
        pass
    elif form == "json":
        click.echo(done.report.to_json())
    else:
        from holdfast.sinks.console import ReportPage
        from holdfast.sinks.page import Page

        ReportPage(Page(sys.stdout)).write(done.report, "holdfast")
    if done.error is not None:
        import traceback

        traceback.print_exception(done.error)
        return 3
    return int(done.report.fails(settings.fail_on))
