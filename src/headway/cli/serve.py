"""`headway serve DIR`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from headway.errors import UsageError

DEFAULT_PORT = 8321


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on. Others than this machine's own can be reached from outside.",
)
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; 0 takes any that is free.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="A further name the page may be asked for by, for a proxy. May be given several times.",
)
@click.option("--browser/--no-browser", default=False, help="Open the page in a browser.")
def command(folder: Path, host: str, port: int, names: Sequence[str], browser: bool) -> int:
    """Show the runs below DIR on a live page, while they train.

    Lists every run directory (what `Guard(run_dir=…)` writes) and every log
    that `headway diagnose` reads, with the same charts as the report. Nothing
    below DIR is written. The address that is printed carries a token: whoever
    has it can read what is shown. Ctrl-C ends it.
    """
    try:
        from headway.web.access import is_loopback
        from headway.web.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "numpy", "anyio"):
            raise
        raise UsageError(f"headway serve needs {error.name}: pip install 'headway[web]'") from error

    def up(address: str) -> None:
        if not is_loopback(host):
            print(
                f"headway: listening on {host}: others on the network can reach this port. The "
                "token in the address is required; without encryption it can be overheard.",
                file=sys.stderr,
            )
        print("headway: showing the runs, read-only; Ctrl-C ends it", file=sys.stderr)
        sys.stderr.flush()
        print(address, flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(folder, host=host, port=port, names=names, up=up)
    return 0
