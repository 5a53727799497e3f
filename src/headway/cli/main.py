"""The `headway` command."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import click

from headway.cli.exit_codes import OutputClosed, run_to_exit_code

COMMANDS = {
    "demo": "Watch a run break, and be saved. Under a minute, on a CPU.",
    "check": "Run a training script for a few steps and say what is wrong with it.",
    "run": "Put the guard around a whole training, without changing the script.",
    "diagnose": "Say what went wrong in a run, when and why.",
    "report": "Write what diagnose says, with charts, as one HTML file to send around.",
    "serve": "Show the runs below DIR on a live page, while they train.",
    "watch": "Follow a run in the terminal while it trains.",
    "scan": "Look through checkpoints: NaN, damage, what changed, which one is the last good.",
    "export": "Write a run's numbers as a table: one row a step, one column a signal.",
    "replay": "Run a captured incident again: exit 1 if it reproduces, 0 if it is cured.",
    "explain": "What a check looks for, why it matters, what to do.",
    "checks": "List the checks.",
    "env": "Versions and devices, to paste into a bug report.",
}
"""The commands in the order of `--help`. Their modules are not imported to show it."""


class Commands(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"headway.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would end it with 1, which means findings
            raise OutputClosed from error

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run, and end the process with the exit code the command has earned."""
        kwargs["standalone_mode"] = False
        run = super().main
        sys.exit(run_to_exit_code(lambda: run(*args, **kwargs)))


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 no findings, 1 findings, 2 usage or unreadable input, 3 the script that "
    "was run crashed, 4 internal error.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _option, wanted: _show_version(ctx) if wanted else None,
    help="Show the versions of headway, Python and torch, and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Keeps PyTorch training runs alive and explains why they fail."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _show_version(ctx: click.Context) -> NoReturn:
    from headway.cli.env import version_line

    click.echo(version_line())
    ctx.exit()


def main() -> NoReturn:
    """The entry point."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its number; that is no reason to stop.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    cli.main(prog_name="headway")
