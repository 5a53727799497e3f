"""What Jupyter is given: small, whole, and nothing of a stranger's in it is taken for HTML."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import headway
from headway.core.findings import Finding, Remedy, Severity, SourceEdit, Where
from headway.core.records import Header, StepRecord
from headway.core.signals import Signal
from headway.engine import Engine
from headway.output.notebook import SHOWN
from headway.report import Coverage, Report

HOSTILE = Finding(
    "HD201",
    "nonfinite-gradient",
    Severity.ERROR,
    4,
    "<script>alert(1)</script> & \x1b[31m",
    where=Where(file='"><img src=x onerror=y>.py', line=3),
    remedies=(Remedy("<b>clip</b>", tested=True, cured=True),),
)


PICTURE = {"svg", "polyline", "path", "title", "text"}


class Balanced(HTMLParser):
    """Every tag that is opened is closed, and they are few."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {
            "div",
            "b",
            "br",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "span",
            "code",
            *PICTURE,
            "pre",
        }
        if tag not in PICTURE:
            assert {name for name, _ in attrs} <= {"style"}
        assert not any(name.startswith("on") or name == "href" for name, _ in attrs)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data + " "


def report(*findings: Finding) -> Report:
    return Report("diagnose", findings, (), (), Coverage(30, 40))


def test_a_fix_is_a_diff_below_its_finding() -> None:
    edit = SourceEdit("train.py", 4, 5, "x.clamp_min(0)", "", "y = x.sqrt()", 4)
    fix = Remedy("At train.py:1 write `y = x.clamp_min(0).sqrt()`", True, True, (edit,))
    shown = report(replace(HOSTILE, remedies=(fix,)))._repr_html_()
    assert "<pre>-y = x.sqrt()\n+y = x.clamp_min(0).sqrt()</pre>" in shown
    assert shown.count("<th ") == 3
    assert Balanced(shown)


def test_nothing_hostile_becomes_a_tag() -> None:
    shown = Balanced(report(HOSTILE)._repr_html_())
    assert "<script>alert(1)</script> &" in shown.words
    assert "→ <b>clip</b> (tested on the failing step: cured)" in shown.words
    assert "\x1b" not in shown.words
    assert "1 error" in shown.words


def test_a_healthy_report_is_two_lines() -> None:
    html = report()._repr_html_()
    assert "healthy" in Balanced(html).words
    assert "30 of 40 checks could run" in html
    assert "<table" not in html


def test_of_many_findings_the_worst_are_shown() -> None:
    mild = [Finding("HD9", "x", Severity.INFO, at, "said") for at in range(SHOWN + 5)]
    html = report(*mild, HOSTILE)._repr_html_()
    assert html.count("<tr>") == SHOWN + 1
    assert "HD201" in html
    assert "and 6 more" in html


def test_a_list_of_findings_is_a_list_and_is_shown_as_a_table() -> None:
    found = report(HOSTILE, HOSTILE).findings
    assert found == [HOSTILE, HOSTILE]
    shown = Balanced(found._repr_html_())
    assert "2 findings" in shown.words
    assert shown.words.count("HD201 nonfinite-gradient") == 2
    assert "<table" not in report().findings._repr_html_()


def test_a_guard_shows_what_it_has_seen_and_done(tmp_path: object) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with headway.Guard(model, optimizer, run_dir=str(tmp_path)) as guard:
        assert "watching, 0 steps, 0 actions" in Balanced(guard._repr_html_()).words
        for factor in (1.0, math.nan):
            (model(torch.ones(3, 2)).mean() * factor).backward()
            optimizer.step()
            optimizer.zero_grad()
        words = Balanced(guard._repr_html_()).words
        assert "watching, 2 steps, 1 action" in words
        assert "HD101 nonfinite-loss" in words
        assert "last action: skip" in words
        assert "HD101 nonfinite-loss" in guard.findings._repr_html_()
    assert "closed, 2 steps" in guard._repr_html_()
    assert str(tmp_path) in guard._repr_html_()


def test_a_guard_draws_its_loss_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train() -> str:
        with headway.Guard(model, optimizer) as guard:
            for factor in (1.0, 1.0, math.nan, 1.0):
                (model(torch.ones(3, 2)).square().mean() * factor).backward()
                optimizer.step()
                optimizer.zero_grad()
            html: str = guard._repr_html_()
        return html

    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert "<svg" not in train()
    monkeypatch.setitem(sys.modules, "IPython", sys)
    html = train()
    assert 'aria-label="loss from step 0 to 3"' in html
    assert html.count('l-4 7z" fill="#d33"') == 1  # the NaN
    assert "step 0" in Balanced(html).words


def test_a_report_of_an_engine_shows_itself() -> None:
    engine = Engine()
    engine.feed(Header("headway", signals={"loss": Signal()}))
    engine.feed(StepRecord(0, 1, 0, {"loss": math.nan}))
    engine.finish()
    assert "HD101" in Balanced(Report.from_engine(engine, command="x")._repr_html_()).words


def test_the_loss_is_drawn_without_a_script() -> None:
    steps = list(range(2000))
    losses = [math.nan if step == 900 else 2.0 / (1 + step / 100) for step in steps]
    html = replace(report(HOSTILE), curve=(steps, losses))._repr_html_()
    shown = Balanced(html)
    assert "<script" not in html
    points = re.findall(r'<polyline points="([^"]+)"', html)
    assert len(points) == 1
    assert 200 < len(points[0].split()) < 1400
    assert "step 0" in shown.words
    assert "1999" in shown.words
    assert html.count('l-4 7z" fill="#d33"') == 1  # the NaN
    assert len(html) < 40_000


def test_a_run_that_went_back_or_has_no_curve_is_shown() -> None:
    assert "<svg" not in report()._repr_html_()
    assert "<svg" not in replace(report(), curve=([3], [1.0]))._repr_html_()
    again = replace(report(HOSTILE), curve=([0, 1, 2, 1, 2, 3], [3.0, 2.0, 9.0, 2.0, 1.5, 1.0]))
    assert "step 0" in Balanced(again._repr_html_()).words
