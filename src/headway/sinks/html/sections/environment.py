"""What the run said of itself, and what was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.charts.gather import ChartData
from headway.sinks.html.markup import Child, Node, tag
from headway.sinks.html.sections.asked import PageReport
from headway.sinks.html.sections.pieces import facts_table, said, section, table

MOST_FACTS = 200


def environment(report: PageReport, data: ChartData) -> Node:
    """What the run said of itself, and what was read."""
    told: list[Child] = []
    facts = [(key, value) for key, value in data.facts.items() if value not in (None, {}, [])]
    if facts:
        told.append(facts_table(facts[:MOST_FACTS]))
    read = [item for item in report.sources if "clean" not in item]
    if read:
        rows = [
            [str(item.get("path")), said(item.get("format")), _used(item)] for item in read[:100]
        ]
        told.append(table("What was read", ("file", "read as", "lines used"), rows))
    if report.notes:
        told.append(tag("ul", [tag("li", note) for note in report.notes], class_="plain"))
    if not told:
        told.append(tag("p", "Nothing is known of it.", class_="quiet"))
    return section("environment", "Environment and settings", told)


def _used(item: Mapping[str, Any]) -> str:
    return f"{said(item.get('used'))} of {said(item.get('lines'))}"
