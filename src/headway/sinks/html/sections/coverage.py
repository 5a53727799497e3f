"""What was looked at, and why the rest was not."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.findings import NotRun
from headway.sinks.html.markup import Child, Node, tag
from headway.sinks.html.sections.pieces import folded, section, table


def coverage(not_run: Sequence[NotRun], ran: int, of: int) -> Node:
    """What was looked at, and why the rest was not."""
    told: list[Child] = [tag("p", f"{ran} of {of} checks could run on this source.")]
    if not_run:
        by_reason: dict[str, list[str]] = {}
        for item in not_run:
            by_reason.setdefault(item.reason, []).append(item.code)
        ranked = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
        rows = [[reason, ", ".join(codes)] for reason, codes in ranked]
        shown = table("Checks that were not run", ("why", "checks"), rows)
        told.append(folded(f"Not run: {len(not_run)}, and why", [shown]))
    return section("coverage", "Coverage", told)
