"""Findings that are known: comments in the source, and the baseline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from support.literate_cases import read_records

from headway.cli.main import cli
from headway.config import Settings
from headway.core.findings import Finding, Severity, Where
from headway.engine import Engine
from headway.errors import SettingsError
from headway.output import code_frame
from headway.output.machine_formats import github_commands, junit_document, sarif_document
from headway.output.view import coverage_text
from headway.report import Report
from headway.rundir.writer import RunDirWriter
from headway.suppression import Baseline, comments_in

SPIKE = Finding("HD207", "gradient-spike", Severity.WARNING, 7, "norm 40")


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    code_frame._read_lines.cache_clear()


def source(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    code_frame._read_lines.cache_clear()
    return path


def at(path: Path, line: int, **more: object) -> Finding:
    return replace(SPIKE, where=Where(file=str(path), line=line), **more)


def report(*findings: Finding) -> Report:
    engine = Engine()
    for record in read_records(["loss: 2..1~0.02*60", "grad_norm: 1~0.1*60"]):
        engine.feed(record)
    engine.finish()
    empty = Report.from_engine(engine, command="check")
    assert not empty.findings
    return empty.with_findings(findings)


# Comments


@pytest.mark.parametrize(
    ("comment", "codes", "reason"),
    [
        ("# headway: ignore[HD207] warm-up", ("HD207",), "warm-up"),
        ("#headway:ignore[hd207,HD103]", ("HD207", "HD103"), ""),
        ("# noqa: E501  # headway: ignore[HD207]: known", ("HD207",), "known"),
        ("# headway: ignore[HD207 HD103] why # more", ("HD207", "HD103"), "why"),
        ("# headway: ignore", (), ""),
    ],
)
def test_a_comment_names_codes_and_a_reason(
    tmp_path: Path, comment: str, codes: tuple[str, ...], reason: str
) -> None:
    file = source(tmp_path / "a.py", f"x = 1\nloss.backward()  {comment}\n")
    [found] = comments_in(str(file))
    assert (found.line, found.codes, found.reason) == (2, codes, reason)


@pytest.mark.parametrize(
    "text",
    [
        'x = "# headway: ignore[HD207]"\n',
        '"""\n# headway: ignore[HD207]\n"""\n',
        "# headway: ignored\n",
        "# ignore[HD207]\n",
    ],
)
def test_text_that_is_no_such_comment(tmp_path: Path, text: str) -> None:
    assert comments_in(str(source(tmp_path / "a.py", text))) == []


def test_a_comment_counts_for_its_whole_statement_and_no_other(tmp_path: Path) -> None:
    text = (
        "for x in data:  # headway: ignore[HD103]\n"
        "    loss = f(\n"
        "        x,\n"
        "    )  # headway: ignore[HD207] as planned\n"
        "    loss.backward()\n"
    )
    file = source(tmp_path / "a.py", text)
    found = [at(file, line) for line in (1, 2, 3, 4, 5)]
    after = report(*found).suppress()
    assert [item.where.line for item in after.findings] == [1, 5]
    assert [item.finding.where.line for item in after.suppressed] == [2, 3, 4]
    assert {(item.by, item.reason) for item in after.suppressed} == {("comment", "as planned")}


def test_a_suppressed_finding_is_counted_everywhere(tmp_path: Path) -> None:
    file = source(tmp_path / "a.py", "loss.backward()  # headway: ignore[HD207] warm-up\n")
    after = report(at(file, 1), SPIKE).suppress()
    assert after.findings == [SPIKE]
    assert coverage_text(after).endswith("; 1 finding suppressed (1 by a comment)")
    [item] = json.loads(after.to_json())["suppressed"]
    assert (item["code"], item["suppressed_by"], item["reason"]) == ("HD207", "comment", "warm-up")
    assert "::notice title=headway::1 finding suppressed (1 by a comment)" in github_commands(after)
    results = sarif_document([(tmp_path, after)])["runs"][0]["results"]
    assert "suppressions" not in results[0]
    assert results[1]["suppressions"] == [{"kind": "inSource", "justification": "warm-up"}]


def test_a_report_with_nothing_else_is_healthy_and_does_not_fail(tmp_path: Path) -> None:
    file = source(tmp_path / "a.py", "loss.backward()  # headway: ignore[HD207]\n")
    before = report(at(file, 1))
    after = before.suppress()
    assert (before.verdict, before.fails("warning")) == ("findings", True)
    assert (after.verdict, after.fails("warning"), list(after.causes)) == ("healthy", False, [])


@pytest.mark.parametrize("code", ["HD911", "HD915"])
def test_how_a_run_ended_is_always_reported(tmp_path: Path, code: str) -> None:
    file = source(tmp_path / "a.py", f"crash()  # headway: ignore[{code}]\n")
    ended = at(file, 1, code=code, name="x", severity=Severity.ERROR)
    baseline = Baseline.of([[ended]], tmp_path)
    after = report(ended).suppress(baseline)
    assert list(after.findings) == [ended]
    assert after.verdict in ("failed", "interrupted")


def test_a_comment_that_suppresses_nothing_is_reported(tmp_path: Path) -> None:
    file = source(
        tmp_path / "a.py",
        "a()  # headway: ignore[HD207, HD103]\n"
        "b()  # headway: ignore[HD2O7]\n"
        "c()  # headway: ignore\n"
        "d()  # headway: ignore[HD101]\n"
        "e()  # headway: ignore[HD501]\n",
    )
    healthy = report(at(file, 1))
    assert "HD501" in {item.code for item in healthy.not_run}
    after = healthy.suppress(settings=Settings(ignore=("HD101",)))
    assert [(item.line, item.code) for item in after.unused_suppressions] == [
        (1, "HD103"),
        (2, "HD2O7"),
        (3, ""),
    ], "not for checks that did not run: HD101 is ignored, HD501 had no data"
    assert "no check has the code HD2O7" in after.unused_suppressions[1].why
    assert json.loads(after.to_json())["unused_suppressions"][0]["code"] == "HD103"
    assert any("unused suppression" in line for line in github_commands(after))
    assert report().suppress().unused_suppressions == [], "only in files that were looked at"
    assert report().suppress(files=[str(file)]).unused_suppressions


def test_a_file_that_has_changed_since_the_run_suppresses_nothing(tmp_path: Path) -> None:
    file = source(tmp_path / "a.py", "other()  # headway: ignore[HD207]\n")
    found = at(file, 1, evidence={"source": "loss.backward()"})
    assert list(report(found).suppress().findings) == [found]
    source(file, "loss.backward()  # headway: ignore[HD207] added after the run\n")
    assert list(report(found).suppress().findings) == []


# The baseline


def test_only_new_findings_are_left_when_lines_move(tmp_path: Path) -> None:
    file = source(tmp_path / "a.py", "x = 1\nloss.backward()\n")
    known = at(file, 2, subject=f"norm {file}:2")
    path = tmp_path / "known.json"
    Baseline.of([[known]], tmp_path).write(path)
    source(file, "import os\nx = 1\n\nloss.backward()\nother.backward()\n")
    moved, new = at(file, 4, subject=f"norm {file}:4"), at(file, 5, subject=f"norm {file}:5")
    after = report(moved, new).suppress(Baseline.read(path))
    assert list(after.findings) == [new]
    assert [item.by for item in after.suppressed] == ["baseline"]
    assert str(tmp_path) not in path.read_text(), "it can be committed"


def test_one_more_of_the_same_is_new(tmp_path: Path) -> None:
    baseline = Baseline.of([[SPIKE], [SPIKE, SPIKE]], tmp_path)
    assert list(baseline.counts.values()) == [2]
    assert len(report(SPIKE, SPIKE, SPIKE).suppress(baseline).findings) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "does not exist: create it with --write-baseline"),
        ("{", "cannot read the baseline"),
        ("[]", "is not a baseline of this version"),
        ('{"schema": 2, "findings": []}', "is not a baseline of this version"),
        ('{"schema": 1, "findings": [{"code": "HD101"}]}', "is damaged"),
        ('{"schema": 1, "findings": [5]}', "is damaged"),
    ],
)
def test_a_baseline_that_cannot_be_used(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "known.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        Baseline.read(path)


def invoke(*args: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="headway")
    return done.exit_code, done.stdout, done.stderr


def test_the_commands_write_and_use_a_baseline(tmp_path: Path) -> None:
    norms = "grad_norm: 1.0~0.1*60, 400, 1.0~0.1*10, nan*5"
    for name, lines in (
        ("old", ["loss: 2.0..1.5~0.02*71, nan*5"]),
        ("new", ["loss: 2.0..1.5~0.02*71, nan*5", norms, "held: @61"]),
    ):
        writer = RunDirWriter(tmp_path / name, notify=pytest.fail)
        for record in read_records(lines):
            writer.write(record)
        writer.flush()
    assert invoke("diagnose", "old")[0] == 1
    assert invoke("diagnose", "old", "--baseline", "none.json")[0] == 2
    status, _, said = invoke("diagnose", "old", "--write-baseline")
    assert status == 0
    assert "written to headway-baseline.json" in said
    (tmp_path / "pyproject.toml").write_text('[tool.headway]\nbaseline = "headway-baseline.json"\n')
    status, text, _ = invoke("diagnose", "old")
    assert status == 0
    assert "by the baseline)" in text
    status, text, _ = invoke("diagnose", "new", "--format", "json", "--fail-on", "warning")
    assert status == 1
    assert "HD207" in {item["code"] for item in json.loads(text)["findings"]}
    assert {item["suppressed_by"] for item in json.loads(text)["suppressed"]} == {"baseline"}


# JUnit


def test_junit_has_one_case_for_each_check_and_finding(tmp_path: Path) -> None:
    file = source(tmp_path / "a.py", "loss.backward()  # headway: ignore[HD207] warm-up\n")
    bad = at(file, 1, code="HD101", name="nonfinite-loss", severity=Severity.ERROR)
    bad = replace(bad, message="loss is NaN <&> \x1b[31m")
    mild = at(file, 9, code="HD103", name="loss-spike")
    one = report(bad, mild, at(file, 1)).suppress()
    settings = Settings(ignore=("HD9",))
    root = ElementTree.fromstring(junit_document([(file, one)], settings))
    [suite] = root
    cases = {case.get("name"): case for case in suite}
    failed = cases["HD101 nonfinite-loss at a.py:1"]
    assert (failed.get("classname"), failed.get("file"), failed.get("line")) == (
        "headway.loss",
        "a.py",
        "1",
    )
    assert "loss is NaN <&>" in (failed.find("failure").get("message"))  # type: ignore[union-attr]
    assert cases["HD103 loss-spike at a.py:9"].find("failure") is None, "a warning does not fail"
    skipped = cases["HD207 gradient-spike at a.py:1"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "suppressed by the comment: warm-up"
    assert cases["HD501 nonfinite-input"].find("skipped") is not None, "it did not run"
    assert list(cases["HD202 exploding-gradient"]) == []
    assert not any(name.startswith("HD9") for name in cases), "not selected"
    count = {kind: len(suite.findall(f".//{kind}")) for kind in ("failure", "skipped", "error")}
    assert suite.get("tests") == str(len(suite))
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    assert suite.get("skipped") == str(count["skipped"])


def test_junit_of_a_script_that_made_no_step(tmp_path: Path) -> None:
    text = junit_document([(tmp_path, report())], Settings(), unreached="it made no step")
    [error] = ElementTree.fromstring(text).findall(".//error")
    assert error.get("message") == "it made no step"


def test_junit_counts_the_checks_that_ran(tmp_path: Path) -> None:
    one = report()
    [suite] = ElementTree.fromstring(junit_document([(tmp_path, one)], Settings()))
    assert int(suite.get("tests", "")) == one.coverage.of
    assert int(suite.get("skipped", "")) == one.coverage.of - one.coverage.ran
