"""Options that several commands share, the settings they result in, and `--format`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headway.cli.exit_codes import print_message
from headway.config import Settings
from headway.core.numbers import plural
from headway.errors import UsageError
from headway.output.view import ReportView
from headway.policy import Policy

if TYPE_CHECKING:
    from headway.report import Report

FORMATS = ("text", "json", "github", "sarif", "junit")

Command = TypeVar("Command", bound=Callable[..., Any])


class RunPath(click.Path):
    """A path, or the URL of a store, which is downloaded for commands that read."""

    def __init__(self, *, written: bool = False, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay, file_okay=not written)
        self._written = written

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from headway.rundir.remote_run import fetch_run
        from headway.rundir.run_files import input_path, is_url

        if is_url(value):
            return value if self._written else fetch_run(value)
        return super().convert(input_path(value), param, ctx)


def output_format(*choices: str) -> Callable[[Command], Command]:
    """`--format`, the first choice being the default."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="Output format.",
    )


def print_reports(
    form: str,
    reports: Sequence[tuple[Path, ReportView]],
    *,
    listed: bool = False,
    extra: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
) -> None:
    """Print reports in the chosen machine-readable format."""
    from headway.output.machine_formats import render_reports

    if text := render_reports(form, reports, listed=listed, extra=extra, settings=settings):
        click.echo(text)


def which_checks(command: Command) -> Command:
    """`--select` and `--ignore`."""
    for name, verb in (("--ignore", "Skip"), ("--select", "Use only")):
        command = click.option(
            name,
            multiple=True,
            metavar="CODES",
            callback=_split,
            help=f"{verb} these checks: comma-separated codes, code prefixes or names.",
        )(command)
    return command


def config_file(command: Command) -> Command:
    """`--config`."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="HEADWAY_CONFIG",
        help="Read settings from this TOML file instead of the nearest pyproject.toml.",
    )(command)


def known_findings(command: Command) -> Command:
    """`--baseline` and `--write-baseline`."""
    for decorate in (
        click.option(
            "--write-baseline",
            is_flag=True,
            help="Write the findings to the baseline, so that only new ones fail from now on.",
        ),
        click.option(
            "--baseline",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Suppress the findings in this file, which --write-baseline writes.",
        ),
    ):
        command = decorate(command)
    return command


def is_first_rank() -> bool:
    """Whether this process prints for all ranks."""
    return os.environ.get("RANK", "0") in ("", "0")


def suppress_known(
    reports: Sequence[Report],
    settings: Settings,
    *,
    write: bool = False,
    files: Sequence[str] = (),
) -> list[Report]:
    """The reports without findings that a comment or the baseline accepts.

    `write`: write the baseline first. `files`: sources whose unused comments are reported.
    """
    if not write and not settings.baseline:
        return [report.suppress(files=files, settings=settings) for report in reports]
    from headway.suppression import DEFAULT_BASELINE, Baseline

    path = Path(settings.baseline or DEFAULT_BASELINE)
    if write:
        # Findings that a comment suppresses need no entry.
        left = [report.suppress(settings=settings).findings for report in reports]
        baseline = Baseline.of(left, path.absolute().parent)
        if is_first_rank():
            baseline.write(path)
            count = plural(sum(baseline.counts.values()), "finding")
            print_message(f"{count} written to {path}; --baseline {path} suppresses them")
    else:
        baseline = Baseline.read(path)
    return [report.suppress(baseline, files=files, settings=settings) for report in reports]


def fail_on(*, default: str = "error") -> Callable[[Command], Command]:
    """`--fail-on`; `default` is for the help."""
    return click.option(
        "--fail-on",
        type=click.Choice(["error", "warning", "never"]),
        default=None,
        help=f"Exit with code 1 for findings of this severity or above.  [default: {default}]",
    )


def settings_from(
    config: Path | None = None,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: str | None = None,
    baseline: str | None = None,
    distrust: Callable[[Path], bool] | None = None,
) -> Settings:
    """The settings of the file and the environment, overridden by the command line.

    `--select` replaces the file's selection and its ignored checks; `--ignore` alone adds to them.
    """
    settings = Settings.load(config, distrust=distrust)
    Policy.from_mapping(settings.policy)  # every command reports a misspelt key
    kept = () if select else settings.ignore
    return replace(
        settings,
        select=known_codes(select or settings.select),
        ignore=known_codes((*kept, *ignore)),
        fail_on=fail_on or settings.fail_on,
        baseline=baseline or settings.baseline,
    )


def known_codes(wanted: Sequence[str]) -> tuple[str, ...]:
    """Codes or code prefixes for the given words. Raises UsageError for an unknown one."""
    if not wanted:
        return ()
    from headway import registry

    names = {check.name: check.code for check in registry.all_checks()}
    return tuple(_known(word, names) for word in wanted)


def _known(word: str, names: dict[str, str]) -> str:
    if word.lower() in names:
        return names[word.lower()]
    code = word.upper()
    if any(known.startswith(code) for known in names.values()):
        return code
    from headway import registry

    hint = registry.suggest(word, names.values(), names)
    raise UsageError(f"no check has the code or name {word!r}; {hint}")


def _split(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    words = [word.strip() for value in values for word in value.split(",")]
    if values and not all(words):
        raise click.BadParameter("expected codes separated by commas, such as HD1,HD204")
    return words
