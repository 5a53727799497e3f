"""Findings for machines: GitHub's commands and SARIF; and the place of a finding in words."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headway.config import Settings
from headway.core.findings import Finding, Severity, Where
from headway.diagnosis import Cause
from headway.engine import Engine
from headway.output.console import ReportPrinter
from headway.output.display_text import clean, shell_quote, shorten_local_paths, wrap_for
from headway.output.machine_formats import github_commands, junit_document, sarif_document
from headway.output.terminal import TerminalPage
from headway.output.view import format_where
from headway.report import Report

PLAIN = Finding("HD101", "nonfinite-loss", Severity.ERROR, 51, "loss is NaN")


def report(*findings: Finding) -> Report:
    empty = Report.from_engine(Engine(), command="diagnose")
    return replace(empty, findings=findings)


def test_github():
    here = str(Path("train.py").resolve())
    placed = replace(PLAIN, where=Where(file=here, line=41), severity=Severity.WARNING)
    nowhere = replace(PLAIN, step=None, severity=Severity.INFO)
    assert list(github_commands(report(PLAIN, placed, nowhere))) == [
        "::error title=HD101 nonfinite-loss::step 51: loss is NaN",
        "::warning file=train.py,line=41,title=HD101 nonfinite-loss::step 51: loss is NaN",
        "::notice title=HD101 nonfinite-loss::loss is NaN",
    ]


def test_github_cannot_be_tricked():
    wicked = replace(PLAIN, message="50% bad\n::error::no", where=Where(file="a,b:c\n.py", line=1))
    (line,) = github_commands(report(wicked))
    assert line == (
        "::error file=a%2Cb%3Ac .py,line=1,title=HD101 nonfinite-loss::"
        "step 51: 50%25 bad ::error::no"
    )


def test_sarif(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    placed = replace(
        PLAIN, code="HD207", where=Where(file="src/my train.py", line=41, module="fc.w")
    )
    told = json.loads(json.dumps(sarif_document([(tmp_path, report(placed, PLAIN))])))
    assert told["version"] == "2.1.0"
    (run,) = told["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["HD101", "HD207"]
    first, second = run["results"]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("HD207", 1, "error")
    assert first["message"] == {"text": "step 51: loss is NaN"}
    assert first["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "src/my%20train.py"},
                "region": {"startLine": 41},
            },
            "logicalLocations": [{"fullyQualifiedName": "fc.w"}],
        }
    ]
    place = second["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": (tmp_path / "run.json").as_uri()}}


@pytest.mark.parametrize("root", [Severity.ERROR, Severity.WARNING])
def test_one_cause_is_one_entry(tmp_path: Path, root: Severity) -> None:
    here = Where(file="train.py", line=41)
    cause = Finding("HD501", "nonfinite-input", root, 51, "sample 7 is NaN", here)
    symptom, elsewhere = replace(PLAIN, where=here), replace(PLAIN, where=replace(here, line=9))
    made = replace(report(symptom, cause, elsewhere), causes=(Cause(cause, (symptom, elsewhere)),))
    (run,) = sarif_document([(tmp_path, made)])["runs"]
    words = [item["message"]["text"] for item in run["results"]]
    assert words == ["step 51: sample 7 is NaN; explains HD101", "step 51: loss is NaN"]
    told = ElementTree.fromstring(junit_document([(tmp_path, made)], Settings()))
    (suite,) = told
    assert suite.get("failures") == "2"
    skipped = {case.get("name"): case.find("skipped") for case in suite}
    assert skipped["HD101 nonfinite-loss"].get("message") == "explained by HD501"


def test_sarif_of_a_healthy_run(tmp_path):
    (run,) = sarif_document([(tmp_path, report())])["runs"]
    assert run["results"] == []
    assert run["tool"]["driver"]["rules"] == []


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (Where(), ""),
        (Where(file="a.py", line=3, function="f", op="div"), "a.py:3 in f, op div"),
        (Where(module="fc", sample=0, rank=2), "fc, sample 0, rank 2"),
        (Where(module="0"), "module 0"),
    ],
)
def test_where(where, words):
    assert format_where(where) == words


def test_a_row_that_the_message_names_is_not_named_twice():
    where = Where(file="a.py", line=3, sample=18)
    message = "data-set sample 1300 contains 1 NaN (batch[0], row 18)"
    assert format_where(where, message=message) == "a.py:3"
    assert format_where(where, message="loss is NaN") == "a.py:3, sample 18"


@pytest.mark.parametrize(
    ("whole", "near"),
    [
        ("at /app/train.py:7 in f", "at train.py:7 in f"),
        ("(/app/a b/x.py:7)", "(a b/x.py:7)"),
        ("/app/x.pt: its member '/app/y'", "x.pt: its member 'y'"),
        ("/srv/app/train.py", "/srv/app/train.py"),
        ("/application/train.py", "/application/train.py"),
        ("the folder /app/ itself", "the folder /app/ itself"),
        ("a.py:3", "a.py:3"),
    ],
)
def test_paths_below_this_folder(whole, near, monkeypatch):
    monkeypatch.setattr("os.getcwd", lambda: "/app")
    assert shorten_local_paths(whole) == near


def test_paths_where_there_is_no_folder(monkeypatch):
    monkeypatch.setattr("os.getcwd", lambda: "/")
    assert shorten_local_paths("at /train.py:7") == "at /train.py:7"

    def gone():
        raise FileNotFoundError

    monkeypatch.setattr("os.getcwd", gone)
    assert shorten_local_paths("at /train.py:7") == "at /train.py:7"


def test_the_page_is_near_and_json_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = str(tmp_path / "train.py")
    made = Report.from_engine(Engine(), command="check")
    placed = replace(PLAIN, where=Where(file=file, line=41))
    made = replace(made, findings=(placed,), causes=(Cause(placed, ()),))
    text = StringIO()
    ReportPrinter(TerminalPage(text)).write(made)
    assert "--> train.py:41" in text.getvalue()
    assert made.to_dict()["findings"][0]["where"]["file"] == file


@pytest.mark.parametrize(
    ("dirty", "kept"),
    [
        ("fc.weight", "fc.weight"),
        ("größe 重み", "größe 重み"),
        ("a\x1b[1;31mb\x1b[0mc", "abc"),
        ("a\x1b]8;;http://x\x1b\\b", "ab"),
        ("a\x1b]0;never closed", "a"),
        ("one\r\n\ttwo\u2028three", "one two three"),
        ("a\x00\x08\x9b\u202e\ud800b", "ab"),
        ("\x1b", ""),
    ],
)
def test_clean(dirty, kept):
    assert clean(dirty) == kept


@pytest.mark.parametrize(
    "name", ["a b", "it's", b"dir\xff/it's a\\b".decode("utf-8", "surrogateescape")]
)
def test_a_quoted_path_is_read_back_by_bash(name: str) -> None:
    quoted = shell_quote(name)
    assert quoted.isascii()
    said = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True)
    assert said.stdout == os.fsencode(name)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_command_to_type_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = (
        "headway: 252 steps guarded, findings: HD101, HD201; next: headway diagnose runs/"
        + "a" * 40
    )
    lines = wrap_for(Terminal(), text).splitlines()
    assert lines[0].endswith("HD201;")
    assert lines[1:] == [f"  next: headway diagnose runs/{'a' * 40}"]
    assert wrap_for(Terminal(), text[:70]) == text[:70]
    short = f"headway: step 41: next: headway replay runs/{'a' * 80}"
    assert wrap_for(Terminal(), short) == short
    assert wrap_for(StringIO(), text) == text


def test_bytes_of_a_path_that_are_not_utf8_are_shown() -> None:
    assert clean(os.fsdecode(b"runs/caf\xe9/r.html")) == r"runs/caf\xe9/r.html"
