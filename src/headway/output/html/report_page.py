"""Renders a report as one HTML file: verdict, charts, causes, details.

The file fetches nothing. Its content security policy allows only the scripts and style sheets
in it, by their hashes: text from a log could not run even if it were taken for markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from headway._version import __version__
from headway.output.display_text import clean, make_path_shortener
from headway.output.html import chart_json, layer_json
from headway.output.html.incident_sections import incidents_section, verdict_section
from headway.output.html.markup import Child, HtmlNode, join, section, tag
from headway.output.html.sections import (
    causes_section,
    checkpoints_section,
    coverage_section,
    environment_section,
    events_section,
)
from headway.output.incident_view import Read, read_head
from headway.output.view import CauseView, SourcedReportView
from headway.rundir.chart_data import ChartData

SCRIPTS = (
    "uPlot.iife.min.js",
    "chart_tools.js",
    "legend.js",
    "choices.js",
    "heat.js",
    "report.js",
)
STYLES = ("uPlot.min.css", "report.css")


def render(
    report: SourcedReportView,
    data: ChartData,
    *,
    subject: str = "",
    folder: Path | None = None,
    read: Read = read_head,
) -> str:
    """The whole document. `folder`: the run directory, if `subject` is only its name."""
    shorten = make_path_shortener(folder or subject)
    folder = folder or (Path(subject) if subject else None)
    title = f"headway: {subject}" if subject else "headway report"
    body = join(
        tag("a", "Skip to the charts", href="#timeline", class_="skip"),
        tag(
            "header",
            tag("h1", "headway report"),
            tag("p", subject, class_="mono") if subject else None,
        ),
        tag(
            "main",
            verdict_section(report, data),
            _timeline(data),
            _system(data),
            causes_section(report, data),
            incidents_section(report, data, folder, read),
            events_section(data),
            _maps(data, report.causes),
            _components(data),
            checkpoints_section(report),
            coverage_section(report.not_run, report.coverage.ran, report.coverage.of),
            environment_section(report, data),
        ),
        tag("footer", tag("p", f"Written by headway {__version__}. This file needs no network.")),
        tag("p", role="status", id="status", class_="unseen"),
    )
    json = shorten(chart_json.embed(chart_document(report.causes, data)))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            tag("meta", http_equiv="Content-Security-Policy", content=_policy()).markup,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            shorten(tag("title", clean(title)).markup),
            *(f"<style>{_asset(name)}</style>" for name in STYLES),
            "</head>",
            f"<body>{shorten(body.markup)}",
            f'<script type="application/json" id="data">{json}</script>',
            *(f"<script>{_asset(name)}</script>" for name in SCRIPTS),
            "</body>",
            "</html>",
            "",
        ]
    )


def chart_document(causes: Sequence[CauseView], data: ChartData) -> dict[str, Any]:
    """All data that the page's script needs."""
    held_x, _ = data.held.points()
    return {
        "end": data.end,
        "jumps": [[jump.x, jump.offset] for jump in data.jumps],
        "panels": chart_json.panels(data),
        "components": chart_json.components(data),
        "system": chart_json.system_panels(data),
        "maps": layer_json.heat_maps(data),
        "changes": layer_json.first_changes(causes, data),
        "flags": chart_json.flags(causes, data),
        "clocks": chart_json.clocks(data),
        "marks": [[mark.x, clean(mark.kind), clean(mark.label)] for mark in data.marks],
        "held": held_x.tolist(),
    }


def _timeline(data: ChartData) -> HtmlNode:
    drawn = chart_json.panels(data)
    if not drawn:
        text = "The source contains no steps, so there is nothing to draw."
        return section("timeline", "Timeline", [tag("p", text, class_="quiet")])
    absent = chart_json.list_missing_signals(data)
    inside: list[Child] = [
        tag(
            "p",
            "Lines: findings. Marks at the top: NaN or Inf. Ticks at the bottom: actions of the "
            "guard.",
            tag("span", " Drag to zoom; arrow keys move the cursor.", class_="noprint"),
            class_="quiet",
        ),
        tag("button", "Show the whole run", type="button", id="whole", hidden=True),
        tag("div", [_figure(panel) for panel in drawn], class_="charts"),
        tag("p", f"Not in this source: {', '.join(absent)}.", class_="quiet") if absent else None,
    ]
    return section("timeline", "Timeline", inside)


def _figure(panel: dict[str, Any]) -> HtmlNode:
    return tag(
        "figure",
        tag(
            "figcaption",
            tag(
                "h3",
                str(panel["title"]),
                tag("span", panel["measure"], class_="unit") if panel["measure"] else None,
            ),
        ),
        tag("div", class_="chart", data_panel=panel["id"]),
        tag("p", str(panel["says"]), class_="says"),
    )


def _system(data: ChartData) -> HtmlNode | None:
    drawn = chart_json.system_panels(data)
    if not drawn:
        return None
    charts = tag("div", [_figure(panel) for panel in drawn], class_="charts small")
    return section("system", "System", [charts])


def _components(data: ChartData) -> HtmlNode | None:
    drawn = chart_json.components(data)
    if not drawn:
        return None
    text = None
    if data.series_left_out:
        text = tag("p", f"{data.series_left_out} or more further series.", class_="quiet")
    charts = tag("div", [_figure(panel) for panel in drawn], class_="charts")
    return section("components", "Loss components", [charts, text])


def _maps(data: ChartData, causes: Sequence[CauseView]) -> HtmlNode | None:
    if not data.maps:
        return None
    name = next(name for name in layer_json.MAP_TITLES if name in data.maps)
    changes = [tag("li", item["text"]) for item in layer_json.first_changes(causes, data)]
    figure = tag(
        "figure",
        tag("figcaption", tag("h3", layer_json.MAP_TITLES[name])),
        tag("div", class_="heat"),
        tag("p", layer_json.describe_heat_map(data, name), class_="says"),
    )
    changed = tag("ul", changes, class_="plain", id="changes") if changes else None
    return section("layers", "Layer by layer", [changed, figure])


def _policy() -> str:
    scripts = " ".join(_hash(_asset(name)) for name in SCRIPTS)
    styles = " ".join(_hash(_asset(name)) for name in STYLES)
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _asset(name: str) -> str:
    """The text of one of our assets."""
    assets = files("headway.output.html") / "assets"
    text = (assets / name).read_text(encoding="utf-8")
    if name.startswith("uPlot") and name.endswith(".js"):
        licence = (assets / "uPlot.LICENSE").read_text(encoding="utf-8")
        text = f"/*! uPlot\n{licence}*/\n{text}"
    return text
