"""The saved states that were looked through."""

from __future__ import annotations

from headway.sinks.html.markup import Node, tag
from headway.sinks.html.sections.asked import PageReport
from headway.sinks.html.sections.pieces import said, section, table

MOST_CHECKPOINTS = 300


def checkpoints(report: PageReport) -> Node | None:
    """The saved states that were looked through."""
    saved = [item for item in report.sources if "clean" in item]
    if not saved:
        return None
    rows = [
        [
            said(item.get("step")),
            said(item.get("tensors")),
            said(item.get("bytes"), "bytes"),
            said(item.get("nonfinite")),
            "✓ clean" if item.get("clean") else "✗ not clean",
            str(item.get("path")),
        ]
        for item in saved[-MOST_CHECKPOINTS:]
    ]
    head = ("step", "tensors", "size", "NaN or Inf", "state", "checkpoint")
    shown = table("Checkpoints", head, rows, numbers=(0, 1, 2, 3))
    more = len(saved) - MOST_CHECKPOINTS
    note = (
        tag("p", f"The last {MOST_CHECKPOINTS}; {more} older are not shown.") if more > 0 else None
    )
    return section("checkpoints", "Checkpoints", [shown, note])
