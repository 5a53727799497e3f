"""What the guard did, and what else the run told."""

from __future__ import annotations

from headway.charts.gather import ChartData
from headway.sinks.html.markup import Node, tag
from headway.sinks.html.sections.pieces import folded, jump


def happened(data: ChartData) -> Node | None:
    """What the guard did, and what else the run told."""
    if not data.marks:
        return None
    items = [tag("li", jump(mark.x, mark.step, data), f" {mark.label}") for mark in data.marks]
    if data.marks_left_out:
        items.append(tag("li", f"and {data.marks_left_out} between them that are not listed"))
    count = len(data.marks) + data.marks_left_out
    listed = tag("ul", items, class_="plain")
    return folded(f"What happened on the way ({count})", [listed], open_=count <= 8)
