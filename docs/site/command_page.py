"""The command line, from click's own descriptions."""

from __future__ import annotations

import inspect
import re

import click

from headway.cli.main import cli


def page() -> str:
    """Every command with its arguments and options."""
    top = click.Context(cli, info_name="headway")
    names = cli.list_commands(top)
    parts = [
        "# The command line",
        "",
        "Generated from the commands: the same text as `headway COMMAND --help`.",
        "",
        "| command | what it does |",
        "|---|---|",
    ]
    commands = [(name, cli.get_command(top, name)) for name in names]
    parts += [
        f"| [`{name}`](#headway-{name}) | {_first_sentence(command)} |"
        for name, command in commands
        if command is not None
    ]
    parts += [
        "",
        "`python -m headway …` is the same, and is what `torchrun -m headway …` needs. "
        "For the exit codes, see [exit codes](exit-codes.md).",
        "",
    ]
    for name, command in commands:
        if command is not None:
            parts += _command(command, click.Context(command, info_name=name, parent=top))
    return "\n".join(parts)


def _command(command: click.Command, context: click.Context) -> list[str]:
    path = context.command_path
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts = [f"## {path} {{ #{path.replace(' ', '-')} }}", "", "```text", usage, "```", ""]
    parts += [_prose(inspect.cleandoc(command.help or "")), ""]
    rows = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        and (record := parameter.get_help_record(context)) is not None
    ]
    if rows:
        parts += ["| option | |", "|---|---|", *(_row(*row) for row in rows), ""]
    return parts


def _first_sentence(command: click.Command) -> str:
    return (command.help or "").strip().splitlines()[0]


def _prose(text: str) -> str:
    """Help text as Markdown: an indented piece is code, and so is one that click does not wrap."""
    parts = []
    for piece in re.split(r"\n\s*\n", text.strip()):
        lines = [line for line in piece.splitlines() if line.strip() != "\b"]
        kept = "\b" in piece
        if kept and any(line.startswith("  ") for line in lines):
            said = [line for line in lines if not line.startswith("  ")]
            code = [line.strip() for line in lines if line.startswith("  ")]
            parts.append("\n".join([*said, "", "```text", *code, "```"]).strip())
        else:
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _row(option: str, words: str) -> str:
    shown = option.replace("|", "\\|")
    return f"| `{shown}` | {words.replace('|', chr(92) + '|')} |"
