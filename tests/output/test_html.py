"""The page as text: complete, in order, and nobody's text in it is markup."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.report_runs import (
    BAD,
    NASTY,
    hostile_run,
    nothing,
    only_a_loss,
    sick_records,
    sick_run,
    well_run,
    write,
)
from support.strategies import thoroughly

import headway
from headway.core.findings import Finding, NotRun, Remedy, Severity, Where
from headway.diagnosis import diagnose as find_causes
from headway.errors import UsageError
from headway.output.html.chart_json import embed
from headway.output.html.markup import format_value, tag
from headway.output.html.report_page import SCRIPTS, render
from headway.report import Report
from headway.rundir.chart_data import ChartData


class Elements(HTMLParser):
    """The elements and the words of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") or tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif not self._inside:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def ids(self, name: str) -> list[str | None]:
        return [attrs.get("id") for tag, attrs in self.tags if tag == name]


def read(report: Report, folder: Path) -> tuple[Elements, dict[str, Any]]:
    report.to_html(folder / "report.html")
    page = Elements((folder / "report.html").read_text(encoding="utf-8"))
    data: dict[str, Any] = json.loads(page.data)
    return page, data


def test_the_order_of_the_page(tmp_path: Path) -> None:
    page, _ = read(sick_run(tmp_path / "run"), tmp_path)
    parts = [None, "timeline", "causes", "incidents", "layers", "components", "coverage"]
    assert page.ids("section") == [*parts, "environment"]
    assert page.text.index("Error") < page.text.index("Timeline") < page.text.index("Causes")


def test_what_is_said_of_a_sick_run(tmp_path: Path) -> None:
    page, data = read(sick_run(tmp_path / "run"), tmp_path)
    assert "HD101 nonfinite-loss" in page.text
    assert "~/losses.py:178" in page.text
    assert "kl = p * (p.log() - logq)" in page.text
    assert "At losses.py:178 clamp p tested on the failing step: cured" in page.text
    assert "Run the loss in float32 tested on the failing step: did not help" in page.text
    assert "samples of the data set 1043" in page.text
    panels = {panel["id"]: panel for panel in data["panels"]}
    assert list(panels) == ["loss", "gradients", "rate", "scale", "memory", "eval"]
    assert panels["loss"]["series"][0]["gaps"] == [["NaN", BAD, BAD, 1]]
    assert [series["label"] for series in panels["gradients"]["series"]] == [
        "before clipping",
        "after clipping",
    ]
    assert [series["label"] for series in data["components"][0]["series"]] == ["ce", "kl"]
    flags = {flag["label"]: flag for flag in data["flags"]}
    assert flags["HD101 nonfinite-loss"]["x"] == BAD
    assert flags["HD101 nonfinite-loss"]["severity"] == "error"
    # A symptom opens the cause that explains it, which is on the page.
    assert flags["HD201 nonfinite-gradient"]["opens"] == flags["HD101 nonfinite-loss"]["opens"]
    assert flags["HD101 nonfinite-loss"]["opens"] in page.ids("article")
    assert data["marks"] == [[BAD, "action", "skip: non-finite loss or gradient"]]
    assert [heat["id"] for heat in data["maps"]] == [
        "param-grad_norm",
        "param-update_ratio",
        "param-nonfinite_share",
    ]
    assert "Non-finite in 1 of 12 rows, first step 83 in blocks.1.bias" in page.text


def test_a_healthy_run(tmp_path: Path) -> None:
    page, data = read(well_run(tmp_path / "run"), tmp_path)
    assert "No problems found" in page.text
    assert data["flags"] == []
    assert "Not in this source: learning rate, loss scale, memory." in page.text


def test_a_log_with_a_loss_alone(tmp_path: Path) -> None:
    page, data = read(only_a_loss(tmp_path / "run"), tmp_path)
    assert [panel["id"] for panel in data["panels"]] == ["loss"]
    assert "layers" not in page.ids("section")
    assert "log.jsonl" in page.text


def test_no_run_at_all(tmp_path: Path) -> None:
    page, data = read(nothing(tmp_path), tmp_path)
    assert "nothing to draw" in page.text
    assert data["panels"] == []
    assert "Few checks ran" in page.text


def test_a_curve_is_enough_for_a_chart(tmp_path: Path) -> None:
    report = replace(nothing(tmp_path), curve=([0, 1, 2], [2.0, float("inf"), 1.0]))
    _, data = read(report, tmp_path)
    assert data["panels"][0]["series"][0] == {
        "label": "loss",
        "x": [0, 2],
        "y": [2.0, 1.0],
        "gaps": [["Infinity", 1, 1, 1]],
    }


def test_checkpoints_and_coverage(tmp_path: Path) -> None:
    saved = {"path": "checkpoint-50", "step": 50, "tensors": 16, "bytes": 8100, "nonfinite": 0}
    dead = {**saved, "path": "checkpoint-100", "step": 100, "nonfinite": 2028, "clean": False}
    report = replace(
        nothing(tmp_path),
        sources=[{**saved, "clean": True}, dead],
        not_run=[NotRun("HD101", "needs loss"), NotRun("HD103", "needs loss")],
    )
    page, _ = read(report, tmp_path)
    assert "50 16 7.9 KiB 0 ✓ clean checkpoint-50" in page.text
    assert "100 16 7.9 KiB 2028 ✗ not clean checkpoint-100" in page.text
    assert "2 checks did not run" in page.text
    assert "needs loss HD101, HD103" in page.text


def test_many_causes_are_folded(tmp_path: Path) -> None:
    findings = [
        Finding("HD104", "loss-spike", Severity.WARNING, step, f"spike {step}", seq=step)
        for step in range(100)
    ]
    report = replace(nothing(tmp_path), findings=findings, causes=find_causes(findings))
    page, _ = read(report, tmp_path)
    assert page.text.startswith("headway: " if report.subject else "headway report")
    assert "Warning" in page.text
    assert "37 more of HD104" in page.text
    assert "60 more; see" in page.text


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        nothing(tmp_path).to_html(tmp_path / "nowhere" / "report.html")


def test_a_hostile_run_is_text(tmp_path: Path) -> None:
    page, data = read(hostile_run(tmp_path / "run"), tmp_path)
    assert {tag for tag, _ in page.tags}.isdisjoint({"img", "iframe", "object", "svg", "link"})
    assert sum(tag == "script" for tag, _ in page.tags) == 1 + len(SCRIPTS)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    hrefs = [attrs["href"] for _, attrs in page.tags if "href" in attrs]
    assert hrefs == ["#timeline", "#incident-0"]  # both within the page
    assert NASTY[0] in page.text
    for text in (page.text, json.dumps(data, ensure_ascii=False)):
        assert not re.search("[\x00-\x08\x1b\u202a-\u202e\u2066-\u2069\u2028]", text)


def test_nothing_is_fetched(tmp_path: Path) -> None:
    report = sick_run(tmp_path / "run")
    report.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Elements(text)
    assert not any({"src", "srcset"} & set(attrs) for _, attrs in page.tags)
    assert "url(" not in text
    assert "@import" not in text
    policy = next(
        attrs["content"]
        for _, attrs in page.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_the_licence_travels_along() -> None:
    page = render(nothing(Path()), ChartData())
    assert "Permission is hereby granted, free of charge" in page


def test_no_file_that_a_log_names_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2\n" * 5)
    finding = Finding(
        "HD101", "nonfinite-loss", Severity.ERROR, 3, "bad", Where(file=str(secret), line=2)
    )
    report = replace(nothing(tmp_path), findings=[finding], causes=find_causes([finding]))
    page, _ = read(report, tmp_path)
    assert "secret.txt:2" in page.text
    assert "hunter2" not in page.text


@thoroughly
@given(st.text())
def test_any_text_is_text(words: str) -> None:
    page = Elements(tag("p", words, title=words).markup)
    assert [name for name, _ in page.tags] == ["p"]


@thoroughly
@given(st.text() | st.sampled_from(["</script>", "<!--", "-->", "\u2028", "]]>", "</SCRIPT "]))
def test_any_text_can_be_embedded(words: str) -> None:
    embedded = embed({"words": words})
    assert not re.search("[<>&\u2028\u2029]", embedded)
    assert json.loads(embedded) == {"words": words}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (True, "yes"),
        (7, "7"),
        (10**400, "about 10^400"),
        (0.25, "0.25"),
        (float("nan"), "NaN"),
        ([1, 2], "1, 2"),
        ({"a_b": [1.5]}, "a b: 1.5"),
    ],
    ids=lambda given: str(given)[:20],
)
def test_values_in_words(value: Any, words: str) -> None:
    assert format_value(value) == words


def test_remedies_that_were_not_tried_are_not_ticked(tmp_path: Path) -> None:
    remedy = Remedy("Lower the rate")
    finding = Finding("HD104", "x", Severity.WARNING, None, "bad", remedies=(remedy,))
    report = replace(nothing(tmp_path), findings=[finding], causes=find_causes([finding]))
    page, _ = read(report, tmp_path)
    assert "→ Lower the rate" in page.text
    assert "✓" not in page.text


def test_the_lines_around_a_bad_one_are_shown(tmp_path: Path) -> None:
    """From the page beside the incident, and taken for text."""
    run = write(tmp_path / "run", sick_records())
    folder = run / "incidents" / f"1-step{BAD}"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(
        "# An incident\n\n```\n"
        "   177 |     p = softmax(x)\n"
        ">  178 |     kl = p * (p.log() - logq)  # <script>alert(1)</script>\n"
        "   179 |     return kl\n```\n\n   1 | of something else\n",
        encoding="utf-8",
    )
    target = tmp_path / "report.html"
    headway.diagnose(run).to_html(target)
    page = target.read_text(encoding="utf-8")
    assert '<span class="line"><span class="number">177</span>    p = softmax(x)</span>' in page
    assert '<span class="line bad"><span class="number">178</span>    kl = p' in page
    assert "<script>alert" not in page
    assert "of something else" not in page


def test_a_pipe_in_place_of_an_incidents_page_stops_nothing(tmp_path: Path) -> None:
    run = write(tmp_path / "run", sick_records())
    folder = run / "incidents" / f"1-step{BAD}"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "README.md")
    headway.diagnose(run).to_html(tmp_path / "report.html")
    assert 'class="context"' not in (tmp_path / "report.html").read_text(encoding="utf-8")
