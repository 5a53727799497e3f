"""A page per check, and the index: made from the checks themselves, never by hand.

The text is the check's docstring, which is what `headway explain CODE` prints.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from itertools import groupby

from moments import MOMENTS, moments

from headway import registry
from headway.cli.checks import family_of
from headway.cli.explain import describe_needs, limits_of
from headway.core.check import Check

Families = Mapping[str, list[type[Check]]]


def families() -> Families:
    """Our checks by family, in order of their codes."""
    ours = [registry.get(code) for code in registry.modules()]
    return {
        family: list(members)
        for family, members in groupby(ours, key=lambda check: family_of(check.code))
    }


def path_of(check: type[Check]) -> str:
    """Where a check's page lies in the site."""
    return f"checks/{check.code}.md"


def page(check: type[Check]) -> str:
    """The page of one check."""
    said = inspect.cleandoc(check.__doc__ or check.summary)
    opening, _, rest = said.partition("\n\n")
    return "\n".join(
        [
            f"# {check.code} {check.name}",
            "",
            f"**{opening.strip()}**",
            "",
            _facts(check),
            "",
            rest,
            "",
            "## Needs",
            "",
            f"{describe_needs(check.needs)}.",
            "",
            "## Limits",
            "",
            _limits(check),
            "",
            "## In the terminal",
            "",
            "```console",
            f"$ headway explain {check.code}",
            f"$ headway diagnose RUN --select {check.code}",
            "```",
            "",
        ]
    )


def _facts(check: type[Check]) -> str:
    when = ", ".join(f"{MOMENTS[letter]} ({letter})" for letter in moments(check))
    status = "" if check.status == "stable" else f", {check.status}"
    return (
        f"**Level** {check.severity}{status} · "
        f"**Family** [{family_of(check.code)}](index.md#{anchor(check)}) · "
        f"**Can run on** {when}"
    )


def anchor(check: type[Check]) -> str:
    """The heading of a check's family in the index."""
    return check.code[:3].lower()


def _limits(check: type[Check]) -> str:
    limits = limits_of(check)
    if not limits:
        return "None to set."
    lines = ["```toml", f"[tool.headway.limits.{check.code}]"]
    for limit in limits:
        if limit.about:
            lines.append(f"# {limit.about}")
        lines.append(f"{limit.name} = {json.dumps(limit.default)}")
    return "\n".join([*lines, "```"])


def index() -> str:
    """All checks by family, then by the moment they can run at."""
    by_family = families()
    count = sum(map(len, by_family.values()))
    parts = [
        "# The checks",
        "",
        f"{count} checks. Each page is what `headway explain CODE` prints. A code is never "
        "reused, so an old report can always be looked up.",
        "",
        "**error**: the run is broken, or will be; the command exits with 1. **warning**: it "
        "likely costs quality. With weaker evidence a check may report a lower level, never a "
        "higher one. Looking for a symptom instead of a code? "
        "Start at [My loss is NaN](../index.md).",
        "",
        "The letters show which data is enough:",
        "",
        "| | |",
        "|---|---|",
        *(f"| **{letter}** | {words} |" for letter, words in MOMENTS.items()),
        "",
    ]
    for family, members in by_family.items():
        parts += [
            f"## {family[0].upper()}{family[1:]} {{ #{anchor(members[0])} }}",
            "",
            "| code | name | what is wrong | level | where |",
            "|---|---|---|---|---|",
            *(_row(check) for check in members),
            "",
        ]
    parts += ["## By moment", ""]
    for letter, words in MOMENTS.items():
        inside = [
            check for some in by_family.values() for check in some if letter in moments(check)
        ]
        parts += [
            f"### {letter}: {words} ({len(inside)})",
            "",
            " · ".join(f"[{check.code}]({check.code}.md) {check.name}" for check in inside),
            "",
        ]
    return "\n".join(parts)


def _row(check: type[Check]) -> str:
    summary = check.summary.replace("|", "\\|")
    status = "" if check.status == "stable" else f" ({check.status})"
    return (
        f"| [{check.code}]({check.code}.md) | [{check.name}]({check.code}.md) | {summary} "
        f"| {check.severity}{status} | {' '.join(moments(check))} |"
    )
