"""`headway explain CODE`"""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from headway import registry
from headway._version import __version__
from headway.cli import options
from headway.cli.families import family_of
from headway.cli.limits import limits_of
from headway.core.check import Check, Needs
from headway.core.records import StepRecord

if TYPE_CHECKING:
    from headway.sinks.page import Page


@click.command()
@click.argument("code")
@options.output_format("text", "json")
def command(code: str, form: str) -> None:
    """What a check looks for, why it matters, what to do.

    CODE is a code such as HD101 or a name such as nonfinite-loss.
    """
    check = registry.get(code.strip())
    if form == "json":
        click.echo(json.dumps(_to_json(check), indent=2))
    else:
        _write(check)


def _to_json(check: type[Check]) -> dict[str, Any]:
    needs = check.needs
    return {
        "schema": 1,
        "tool": "headway",
        "version": __version__,
        "command": "explain",
        "code": check.code,
        "name": check.name,
        "severity": str(check.severity),
        "status": check.status,
        "family": family_of(check.code),
        "summary": check.summary,
        "needs": {
            "signals": list(needs.signals),
            "any_of": list(needs.any_of),
            "records": [kind.__name__ for kind in needs.kinds],
            "span": needs.span,
            "nonfinite": needs.nonfinite,
        },
        "limits": [
            {"name": limit.name, "default": limit.default, "about": limit.about}
            for limit in limits_of(check)
        ],
        "text": inspect.getdoc(check) or "",
    }


def _write(check: type[Check]) -> None:
    from headway.cli.markdown import write_markdown
    from headway.sinks.console import STYLES
    from headway.sinks.page import Page

    page = Page(sys.stdout)
    level = str(check.severity)
    status = "" if check.status == "stable" else f" ({check.status})"
    page.line((f"{check.code} {check.name}", "bold"), "  ", (level + status, STYLES[level]))
    page.gap()
    write_markdown(inspect.getdoc(check) or check.summary, page)
    page.gap()
    page.line(("Needs", "bold"))
    page.line(say_needs(check.needs), first="  ")
    page.gap()
    _write_limits(check, page)
    page.next(f"headway diagnose RUN_DIR --select {check.code}")


def _write_limits(check: type[Check], page: Page) -> None:
    """As they would stand in a settings file."""
    limits = limits_of(check)
    page.line(("Limits", "bold"))
    if not limits:
        page.line("none to set", first="  ")
        return
    page.line((f"[tool.headway.limits.{check.code}]", "dim"), first="  ")
    for limit in limits:
        about = f"  # {limit.about}" if limit.about else ""
        page.line(
            (f"{limit.name} = {json.dumps(limit.default)}", "bold"),
            (about, "dim"),
            first="  ",
            rest="    # ",
        )


def say_needs(needs: Needs) -> str:
    """What a source must have, in a sentence."""
    parts = []
    if needs.signals:
        parts.append(", ".join(needs.signals))
    if needs.any_of:
        parts.append(f"one of {', '.join(needs.any_of)}")
    others = [
        _KINDS.get(kind.__name__, kind.__name__) for kind in needs.kinds if kind != StepRecord
    ]
    if others:
        parts.append((" or " if parts else "") + " or ".join(others))
    said = "; ".join(part.strip() for part in parts) or "steps"
    if needs.span == 1:
        said += "; one value for each step, not a mean over several"
    elif needs.span is not None:
        said += f"; each value covering at most {needs.span} steps"
    if needs.nonfinite:
        said += "; NaN and Inf not filtered out"
    return said


_KINDS = {
    "SetupRecord": "facts about the set-up",
    "TensorRecord": "a look at the tensors (live, preflight or a checkpoint)",
    "EventRecord": "events of the run",
}
