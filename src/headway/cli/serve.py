"""`headway serve DIR`"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from headway.cli import options
from headway.errors import UsageError

DEFAULT_PORT = 8321
SHORTEST_TOKEN = 20


@click.command()
@click.argument("folder", metavar="DIR", type=options.RunPath())
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on. Any other than a loopback address is reachable from the network.",
)
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port; 0 picks a free one.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Additional host name, for a proxy. May be given several times.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the token from FILE, for a program that reads /metrics.  [default: a new token]",
)
@click.option("--browser/--no-browser", default=False, help="Open the page in a browser.")
def command(
    folder: Path,
    host: str,
    port: int,
    names: Sequence[str],
    token_file: Path | None,
    browser: bool,
) -> int:
    """Show the runs below DIR on a live web page.

    Lists every run directory (written by `headway run` or `Guard(run_dir=…)`) and
    every log that `headway diagnose` reads, with the same charts as the report.
    DIR is only read. The printed URL contains a token that gives access to the
    page. Ctrl-C stops the server.
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
                f"headway: listening on {host}, which is reachable from the network. The token in "
                "the URL is required, but it is sent unencrypted.",
                file=sys.stderr,
            )
        print("headway: serving the runs, read-only; Ctrl-C stops", file=sys.stderr)
        sys.stderr.flush()
        print(address, flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)

    token = None if token_file is None else _read_token(token_file)
    stopped = serve(folder, host=host, port=port, names=names, token=token, up=up)
    if not stopped:  # the interpreter would abort a thread in the middle of its work, with SIGABRT
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise UsageError(f"cannot read the token from {path}: {reason}") from error
    if len(token) < SHORTEST_TOKEN or not re.fullmatch(r"[\w-]+", token, re.ASCII):
        raise UsageError(
            f"the token in {path} must have at least {SHORTEST_TOKEN} letters, digits, - or _; "
            'python -c "import secrets; print(secrets.token_urlsafe())" prints one'
        )
    return token
