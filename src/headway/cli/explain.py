"""`headway explain CODE`: prints the docstring of a check, which is Markdown, and its limits; for a
symptom such as `nan`, the page and the checks about it.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any

import click

from headway import registry
from headway._version import __version__
from headway.cli import options
from headway.cli.checks import family_of
from headway.cli.symptom_search import SymptomMatch, search_symptom
from headway.config import nearest_name
from headway.core.check import Check, Needs
from headway.core.records import StepRecord
from headway.output.terminal import StyledText, TerminalPage


@dataclass(frozen=True)
class CheckLimit:
    """A limit that users may change."""

    name: str
    default: Any
    about: str


def limits_of(check: type[Check]) -> list[CheckLimit]:
    """The limits of a check, in the order of its file."""
    about = _attribute_docstrings(check.Limits)
    return [
        CheckLimit(
            item.name, None if item.default is MISSING else item.default, about.get(item.name, "")
        )
        for item in fields(check.Limits)
    ]


def _attribute_docstrings(limits: type) -> dict[str, str]:
    """Field: the string literal below it, which only the source contains."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(limits)))
    except (OSError, TypeError, SyntaxError):  # no source available
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = " ".join(below.value.value.split())
    return found


@click.command()
@click.argument("code", metavar="CODE|SYMPTOM", nargs=-1, required=True)
@options.output_format("text", "json")
def command(code: tuple[str, ...], form: str) -> None:
    """Explain a check: what it looks for, why it matters, what to do.

    CODE is a code such as HD101 or a name such as nonfinite-loss. A SYMPTOM in
    your own words lists the page and the checks about it:

    \b
        headway explain nan
        headway explain loss does not fall
    """
    asked = " ".join(code).strip()
    if registry.find(asked) is None and (found := _search(asked)) is not None:
        _write_symptom(asked, found, form)
        return
    check = registry.get(asked)
    if form == "json":
        click.echo(json.dumps(_to_json(check), indent=2))
    else:
        _write(check)


def _search(asked: str) -> SymptomMatch | None:
    """What a symptom leads to; None for a misspelt code or name, which has a better answer."""
    if re.fullmatch(r"[A-Za-z]{1,6}\d+", asked) and asked.lower() not in ("fp16", "bf16"):
        return None
    near = nearest_name(asked.lower(), [check.name for check in registry.all_checks()])
    return None if near and "-" in asked and " " not in asked else search_symptom(asked)


def _write_symptom(asked: str, found: SymptomMatch, form: str) -> None:
    if form == "json":
        data = {
            "schema": 1,
            "tool": "headway",
            "version": __version__,
            "command": "explain",
            "symptom": asked,
            "page": f"docs/{found.symptom.page}" if found.symptom and found.symptom.page else None,
            "checks": [
                {"code": check.code, "name": check.name, "summary": check.summary}
                for check in found.checks
            ],
        }
        click.echo(json.dumps(data, indent=2))
        return
    page = TerminalPage(sys.stdout)
    if found.symptom is not None:
        page.line((found.symptom.title, "bold"))
        if found.symptom.page:
            page.line(f"Page: docs/{found.symptom.page}", first="  ")
        page.gap()
    page.line(("Related checks, the most likely first", "bold"))
    for check in found.checks:
        page.line(
            (check.code, "bold"), f"  {check.name}: {check.summary}", first="  ", rest=" " * 9
        )
    page.next(f"headway explain {found.checks[0].code}")


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
    from headway.output.console import SEVERITY_STYLES
    from headway.output.terminal import TerminalPage

    page = TerminalPage(sys.stdout)
    level = str(check.severity)
    status = "" if check.status == "stable" else f" ({check.status})"
    page.line(
        (f"{check.code} {check.name}", "bold"), "  ", (level + status, SEVERITY_STYLES[level])
    )
    page.gap()
    write_markdown(inspect.getdoc(check) or check.summary, page)
    page.gap()
    page.line(("Needs", "bold"))
    page.line(describe_needs(check.needs), first="  ")
    page.gap()
    _write_limits(check, page)
    # Facts about the set-up come from the script; a log has few of them.
    from_script = [kind.__name__ for kind in check.needs.kinds] == ["SetupRecord"]
    command = "check SCRIPT" if from_script else "diagnose RUN_DIR"
    page.next(f"headway {command} --select {check.code}")


def _write_limits(check: type[Check], page: TerminalPage) -> None:
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


def describe_needs(needs: Needs) -> str:
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
    text = "; ".join(part.strip() for part in parts) or "steps"
    if needs.span == 1:
        text += "; one value for each step, not a mean over several"
    elif needs.span is not None:
        text += f"; each value covering at most {needs.span} steps"
    if needs.nonfinite:
        text += "; NaN and Inf not filtered out"
    return text


_KINDS = {
    "SetupRecord": "facts about the set-up",
    "TensorRecord": "tensor statistics (guard, check or a checkpoint)",
    "EventRecord": "events of the run",
}


# The Markdown that docstrings use: headings, paragraphs, lists, code and tables.

_BULLET = re.compile(r"^(?:[-*]|\d+\.)\s+")


def write_markdown(text: str, page: TerminalPage) -> None:
    """Print Markdown: headings at the margin, their content indented."""
    margin = ""
    for number, block in enumerate(_blocks(text)):
        first = block[0]
        if number and not (margin == "  " and _BULLET.match(first)):
            page.gap()
        if first.startswith("#"):
            page.line((first.lstrip("# "), "bold"))
            margin = "  "
            block = block[1:]
        _write_block(block, page, margin)


def _write_block(block: list[str], page: TerminalPage, margin: str) -> None:
    if not block:
        return
    if block[0].startswith(("```", "    ", "|")):
        for line in block:
            if not line.startswith("```"):
                page.console.print(margin + line, soft_wrap=True)
        return
    bullet = _BULLET.match(block[0])
    hang = margin + " " * (len(bullet[0]) if bullet else 0)
    page.line(*_inline(" ".join(line.strip() for line in block)), first=margin, rest=hang)


def _blocks(text: str) -> Iterator[list[str]]:
    """Blocks of lines: a heading with its paragraph, a list item, a code block."""
    block: list[str] = []
    fenced = False
    for line in text.splitlines():
        starts = not fenced and (line.startswith(("#", "```")) or bool(_BULLET.match(line)))
        if (starts or (not line.strip() and not fenced)) and block:
            yield block
            block = []
        if line.strip() or fenced:
            block.append(line)
        if line.startswith("```"):
            fenced = not fenced
            if not fenced:
                yield block
                block = []
    if block:
        yield block


def _inline(text: str) -> list[StyledText]:
    """Styles `code` and **bold**."""
    parts: list[StyledText] = []
    for number, piece in enumerate(re.split(r"(`[^`]+`|\*\*[^*]+\*\*)", text)):
        if number % 2 == 0:
            parts.append(piece)
        elif piece.startswith("`"):
            # Backticks are kept: without colour they mark code.
            parts.append((piece, "cyan"))
        else:
            parts.append((piece.strip("*"), "bold"))
    return parts
