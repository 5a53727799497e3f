"""The `headway` command."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import click

from headway.cli.exit_codes import OutputClosed, OwnProcess, run_to_exit_code

COMMANDS = {
    "demo": "Watch a run fail and recover. Takes about a minute on a CPU.",
    "check": "Run a training script for a few steps and report problems.",
    "fix": "Write the tested fix of an incident or a report into the source.",
    "run": "Run a training script under the guard, without changing it.",
    "diagnose": "Report what went wrong in a run, when and why.",
    "report": "Write a diagnosis with charts as a single HTML file.",
    "serve": "Show the runs below DIR on a live web page.",
    "watch": "Follow a run in the terminal while it trains.",
    "scan": "Scan checkpoints for NaN, damage and changes; find the last good one.",
    "export": "Export a run as a table: one row per step, one column per signal.",
    "replay": "Re-run a captured incident: exit 1 if it reproduces, 0 if it is cured.",
    "explain": "Explain a check: what it looks for, why it matters, what to do.",
    "checks": "List the checks.",
    "env": "Print versions and devices for a bug report.",
}
"""The commands in the order of `--help`, which imports none of their modules."""


class Commands(click.Group):
    """A group that imports the module of a command when the command is used."""

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
            hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no such command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would exit with 1, which means findings
            raise OutputClosed from error

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command and exit with its exit code."""
        kwargs["standalone_mode"] = False
        run = super().main
        status = run_to_exit_code(lambda: run(*args, **kwargs))
        if "headway.torch_adapters.device_failure.lost_device" in sys.modules:
            from headway.torch_adapters.device_failure.lost_device import set_exit_status

            set_exit_status(status)
        sys.exit(status)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 no findings, 1 findings, 2 usage error or unreadable input, 3 the script "
    "crashed, 4 internal error.",
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
        # A character that the terminal cannot show is escaped instead of raising an error.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    cli.main(prog_name="headway", obj=OwnProcess())
