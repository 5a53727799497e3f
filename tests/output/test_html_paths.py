"""A report that is sent around tells no home directory, and no more of a path than helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.findings import Finding, Remedy, Severity, Where
from headway.core.records import EventRecord, Header, StepRecord
from headway.diagnosis import diagnose as find_causes
from headway.output.display_text import make_path_shortener
from headway.output.html.report_page import render
from headway.report import Coverage, Report
from headway.rundir.chart_data import build_charts

HOME = Path("/home/alice")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: HOME)
    return HOME


@pytest.mark.parametrize(
    ("said", "short"),
    [
        ("at /home/alice/proj/train.py:7", "at train.py:7"),
        ("at /home/alice/proj", "at ."),
        ("at /home/alice/project-2/train.py", "at ~/project-2/train.py"),
        ("/home/alice/.venv/lib/x.py", "~/.venv/lib/x.py"),
        ("/home/bob/other.py and /Users/carol/x.py", "~/other.py and ~/x.py"),
        ("/root/train.py", "~/train.py"),
        ("/rooted/train.py", "/rooted/train.py"),
        ("loss/home/alice", "loss/home/alice"),
        ("file:///home/alice/x.py", "~/x.py"),
        (r"C:\Users\dave\train.py", r"~\train.py"),
        (r"C:\\Users\\dave\\train.py", r"~\\train.py"),
        ("<code>/home/bob</code>", "<code>~</code>"),
        ("/mnt/runs/first/events.jsonl", "…/first/events.jsonl"),
        ("/usr/lib/python3/x.py", "/usr/lib/python3/x.py"),
    ],
)
def test_shortened(home: Path, said: str, short: str) -> None:
    assert make_path_shortener("/mnt/runs/first", home / "proj")(said) == short


def test_a_run_within_the_project(home: Path) -> None:
    shorten = make_path_shortener("runs/first", home / "proj")
    assert shorten("/home/alice/proj/runs/first/run.json") == "runs/first/run.json"


def test_a_project_is_known_by_what_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "proj" / "scripts").mkdir(parents=True)
    (tmp_path / "proj" / "pyproject.toml").touch()
    shorten = make_path_shortener("runs", tmp_path / "proj" / "scripts")
    assert shorten(f"{tmp_path}/proj/src/model.py") == "src/model.py"


@pytest.mark.parametrize("strange", ["", "\x00", "a" * 5000, "~nobody/x", ".."])
def test_strange_subjects(strange: str) -> None:
    assert make_path_shortener(strange)("at /home/bob/x") == "at ~/x"


def test_no_home_on_the_page(home: Path) -> None:
    """Every place where a path may stand."""
    file = f"{HOME}/secret/train.py"
    finding = Finding(
        code="HD101",
        name="nonfinite-loss",
        severity=Severity.ERROR,
        message=f"loss is NaN in {file}",
        step=3,
        where=Where(file=file, line=7, function="main"),
        evidence={"checkpoint": file, "source": f"open('{file}')"},
        remedies=(Remedy(f"look at `{file}`"),),
    )
    place = {"file": file, "line": 7, "source": f"x = '{file}'"}
    incident = {"headline": file, "origins": [{"op": "log", "phase": "forward", "place": place}]}
    data = build_charts(
        [
            Header("headway", axes={"param": [file]}, facts={"script": file, "argv": [file]}),
            StepRecord(0, 1, 3, {"loss": 1.0, f"loss/{file}": 1.0}),
            EventRecord(0, 2, 3, "note", {"text": file}),
            EventRecord(0, 3, 3, "incident", incident),
        ]
    )
    report = Report(
        command="diagnose",
        findings=[finding],
        causes=find_causes([finding]),
        not_run=[],
        coverage=Coverage(1, 2),
        notes=[f"the run in {file}"],
        sources=[
            {"path": file, "format": "csv", "lines": 1, "used": 1},
            {"path": file, "clean": True, "step": 1, "tensors": 1, "bytes": 1, "nonfinite": 0},
        ],
    )
    page = render(report, data, subject=str(HOME / "secret"))
    assert "alice" not in page
    assert "secret/train.py:7" in page
