"""`headway checks`"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from headway import registry
from headway._version import __version__
from headway.cli import options
from headway.cli.families import family_of
from headway.core.check import Check


@click.command()
@options.output_format("text", "json")
@options.which_checks
@options.config_file
def command(form: str, select: Sequence[str], ignore: Sequence[str], config: Path | None) -> None:
    """List the checks."""
    settings = options.settings_from(config, select=select, ignore=ignore)
    chosen = [check for check in registry.all_checks() if settings.wants(check.code)]
    if form == "json":
        click.echo(json.dumps(_to_json(chosen), indent=2))
    else:
        _write(chosen)


def _to_json(checks: Sequence[type[Check]]) -> dict[str, Any]:
    return {
        "schema": 1,
        "tool": "headway",
        "version": __version__,
        "command": "checks",
        "checks": [
            {
                "code": check.code,
                "name": check.name,
                "severity": str(check.severity),
                "status": check.status,
                "family": family_of(check.code),
                "summary": check.summary,
            }
            for check in checks
        ],
    }


def _write(checks: Sequence[type[Check]]) -> None:
    from headway.sinks.console import STYLES
    from headway.sinks.page import Page

    page = Page(sys.stdout)
    page.line(f"headway: {len(checks)} {'check' if len(checks) == 1 else 'checks'}")
    for family, members in groupby(checks, key=lambda check: family_of(check.code)):
        page.gap()
        page.line((family, "bold"))
        for check in members:
            level = str(check.severity)
            status = "" if check.status == "stable" else f" ({check.status})"
            page.line(
                (f"{check.code}  ", "bold"),
                (f"{level:7}  ", STYLES[level]),
                (check.name, "bold"),
                f": {check.summary}{status}",
                first="  ",
                rest=" " * 18,
            )
    page.next(f"headway explain {checks[0].code if checks else 'CODE'}")
