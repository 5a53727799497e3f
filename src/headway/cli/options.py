"""Options that several commands share, and the settings they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from headway.config import Settings, nearest_name
from headway.errors import UsageError
from headway.policy import Policy

Command = TypeVar("Command", bound=Callable[..., Any])


def output_format(*choices: str) -> Callable[[Command], Command]:
    """`--format`, the first choice being the default."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="How to write the result.",
    )


def which_checks(command: Command) -> Command:
    """`--select` and `--ignore`."""
    for name, verb in (("--ignore", "Leave out"), ("--select", "Run only")):
        command = click.option(
            name,
            multiple=True,
            metavar="CODES",
            callback=_split,
            help=f"{verb} these checks: codes, beginnings of codes or names, by commas.",
        )(command)
    return command


def config_file(command: Command) -> Command:
    """`--config`."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Settings from this TOML file instead of the nearest pyproject.toml.",
    )(command)


def fail_on(command: Command) -> Command:
    """`--fail-on`."""
    return click.option(
        "--fail-on",
        type=click.Choice(["error", "warning", "never"]),
        default=None,
        help="The severity that makes the exit code 1.  [default: error]",
    )(command)


def settings_from(
    config: Path | None = None,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: str | None = None,
) -> Settings:
    """The settings of the file, with what was typed put over them.

    A typed selection replaces the file's choice altogether; a typed `--ignore` alone adds to it.
    """
    settings = Settings.load(config)
    Policy.from_mapping(settings.policy)  # a misspelt key is told by every command, used or not
    kept = () if select else settings.ignore
    return replace(
        settings,
        select=known_codes(select or settings.select),
        ignore=known_codes((*kept, *ignore)),
        fail_on=fail_on or settings.fail_on,
    )


def known_codes(wanted: Sequence[str]) -> tuple[str, ...]:
    """The codes, or beginnings of codes, that were meant. Raises UsageError for an unknown one."""
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
    choices = [*names.values(), *names]
    near = nearest_name(code, choices) or nearest_name(word.lower(), choices)
    hint = f"did you mean {near}?" if near else "`headway checks` lists them all"
    raise UsageError(f"no check has the code or name {word!r}; {hint}")


def _split(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    words = [word.strip() for value in values for word in value.split(",")]
    if values and not all(words):
        raise click.BadParameter("expected codes separated by commas, such as HD1,HD204")
    return words
