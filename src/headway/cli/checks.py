"""`headway checks`, and the families of checks."""

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
from headway.core.check import Check

FAMILIES = {
    "HD0": "headway itself",
    "HD1": "loss",
    "HD2": "gradients",
    "HD3": "weights, activations, precision",
    "HD4": "optimizer and schedule",
    "HD5": "data",
    "HD6": "distributed training",
    "HD7": "checkpoints",
    "HD8": "speed and memory",
    "HD9": "set-up",
}


def family_of(code: str) -> str:
    """The name of the family."""
    return FAMILIES.get(code[:3], "other packages")


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
    from headway.output.console import SEVERITY_STYLES
    from headway.output.terminal import TerminalPage

    page = TerminalPage(sys.stdout)
    page.line(f"headway: {len(checks)} {'check' if len(checks) == 1 else 'checks'}")
    for family, members in groupby(checks, key=lambda check: family_of(check.code)):
        page.gap()
        page.line((family, "bold"))
        for check in members:
            level = str(check.severity)
            status = "" if check.status == "stable" else f" ({check.status})"
            page.line(
                (f"{check.code}  ", "bold"),
                (f"{level:7}  ", SEVERITY_STYLES[level]),
                (check.name, "bold"),
                f": {check.summary}{status}",
                first="  ",
                rest=" " * 18,
            )
    page.next(f"headway explain {checks[0].code if checks else 'CODE'}")
