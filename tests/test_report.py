"""Reports: the verdict, the exit, the JSON."""

from __future__ import annotations

import contextlib
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.strategies import mutated, quick_folder

import headway
from headway.config import Settings
from headway.core.findings import Finding, NotRun, Remedy, Severity, Where
from headway.core.records import Header, StepRecord
from headway.core.signals import Signal
from headway.diagnosis import diagnose as causes_of
from headway.engine import Engine
from headway.errors import UnreadableInput
from headway.postmortem.diagnose import diagnose
from headway.report import Coverage, Report
from headway.rundir.writer import RunDirWriter

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def found(code: str, severity: Severity, **more: Any) -> Finding:
    return Finding(code, "a-name", severity, step=3, message="words", **more)


def report(*findings: Finding) -> Report:
    return Report(
        "diagnose", findings, causes_of(findings), [NotRun("HD201", "why not")], Coverage(2, 3)
    )


def a_run(path: Path, losses: list[float]) -> Path:
    writer = RunDirWriter(path, notify=pytest.fail)
    writer.write(Header("headway", signals={"loss": Signal()}))
    for step, loss in enumerate(losses, 1):
        writer.write(StepRecord(0, step, step, {"loss": loss}))
    writer.flush()
    return path


@pytest.mark.parametrize(
    ("severities", "verdict", "worst"),
    [
        ((), "healthy", INFO),
        ((INFO, INFO), "healthy", INFO),
        ((INFO, WARNING), "findings", WARNING),
        ((ERROR, INFO), "findings", ERROR),
    ],
)
def test_the_verdict_is_findings_from_warning_upward(
    severities: tuple[Severity, ...], verdict: str, worst: Severity
) -> None:
    told = report(*(found("HD101", severity) for severity in severities))
    assert told.verdict == verdict
    assert told.worst is worst


@pytest.mark.parametrize(
    ("severity", "on_error", "on_warning"),
    [(None, False, False), (INFO, False, False), (WARNING, False, True), (ERROR, True, True)],
)
def test_a_command_fails_at_the_severity_it_was_asked_to(
    severity: Severity | None, on_error: bool, on_warning: bool
) -> None:
    told = report(*([found("HD101", severity)] if severity else []))
    assert told.fails("error") is on_error
    assert told.fails("warning") is on_warning
    assert told.fails("never") is False


def test_the_json_has_exactly_the_keys_of_schema_1() -> None:
    """Outside programs rely on these names: adding one is a new schema, or a decision."""
    full = found(
        "HD501",
        ERROR,
        where=Where(file="train.py", line=7, rank=0, sample=2),
        evidence={"value": math.nan, "deep": [{"limit": -math.inf}]},
        remedies=(Remedy("drop it", tested=True, cured=True), Remedy("or not")),
    )
    data = json.loads(report(full, found("HD101", ERROR)).to_json())
    no_edits: dict[str, object] = {"edits": [], "safe": True, "same_loss": False}
    assert data == {
        "schema": 1,
        "tool": "headway",
        "version": headway.__version__,
        "command": "diagnose",
        "verdict": "findings",
        "coverage": {"ran": 2, "of": 3},
        "causes": [
            {"code": "HD501", "name": "a-name", "message": "words", "findings": ["HD501", "HD101"]}
        ],
        "findings": [
            {
                "code": "HD501",
                "name": "a-name",
                "severity": "error",
                "step": 3,
                "where": {
                    "file": "train.py",
                    "line": 7,
                    "function": None,
                    "module": None,
                    "op": None,
                    "rank": 0,
                    "sample": 2,
                },
                "message": "words",
                "occurrences": {"count": 1, "steps": [3]},
                "evidence": {"value": "NaN", "deep": [{"limit": "-Infinity"}]},
                "remedies": [
                    {"text": "drop it", "tested": True, "cured": True, **no_edits},
                    {"text": "or not", "tested": False, "cured": None, **no_edits},
                ],
            },
            {
                "code": "HD101",
                "name": "a-name",
                "severity": "error",
                "step": 3,
                "where": dict.fromkeys(
                    ("file", "line", "function", "module", "op", "rank", "sample")
                ),
                "message": "words",
                "occurrences": {"count": 1, "steps": [3]},
                "evidence": {},
                "remedies": [],
            },
        ],
        "not_run": [{"code": "HD201", "reason": "why not"}],
    }


def test_the_json_is_strict_even_with_odd_evidence() -> None:
    odd = found("HD101", ERROR, evidence={"path": Path("x"), 3: (1.0, math.inf), "set": {1}})
    text = report(odd).to_json()

    def no_constants(name: str) -> Any:
        pytest.fail(f"bare {name} in the JSON")

    [finding] = json.loads(text, parse_constant=no_constants)["findings"]
    assert finding["evidence"]["path"] == "x"
    assert finding["evidence"]["3"] == [1.0, "Infinity"]


def test_coverage_reads_as_a_sentence() -> None:
    assert str(Coverage(31, 84)) == "31 of 84 checks could run"


def test_severities_are_ordered_and_read_from_words() -> None:
    assert INFO < WARNING < ERROR
    assert [Severity.parse(word) for word in ("info", "Warning", "ERROR")] == [INFO, WARNING, ERROR]
    assert str(WARNING) == "warning"


# diagnose(path)


def test_a_run_that_went_bad_is_diagnosed_from_its_directory(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [1.0, 0.9, math.nan, 0.8])
    told = diagnose(path, settings=Settings(select=("HD101", "HD207")))
    assert told.verdict == "findings"
    assert [(item.code, item.step) for item in told.findings] == [("HD101", 3)]
    assert [cause.code for cause in told.causes] == ["HD101"]
    assert told.coverage == Coverage(1, 2)
    assert [item.code for item in told.not_run] == ["HD207"]
    assert told.notes == []
    assert told == headway.diagnose(str(path), settings=Settings(select=("HD101", "HD207")))


def test_a_healthy_run_is_healthy(tmp_path: Path) -> None:
    losses = [1.0 - 0.1 * at for at in range(8)]
    told = diagnose(a_run(tmp_path / "run", losses), settings=Settings(select=("HD101",)))
    assert (told.verdict, list(told.findings), list(told.causes)) == ("healthy", [], [])


def test_a_few_steps_show_nothing(tmp_path: Path) -> None:
    told = diagnose(a_run(tmp_path / "run", [1.0, 0.9, 0.8]), settings=Settings(select=("HD101",)))
    assert told.verdict == told.to_dict()["verdict"] == "unknown"
    assert told.too_little == "only 3 losses, steps 1 to 3, were read, too few to judge a run"


def test_torn_lines_are_mentioned(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [1.0, 0.9])
    with open(path / "steps.rank0.jsonl", "a") as file:
        file.write('{"seg":0,"seq":3,"st')
    told = diagnose(path)
    assert list(told.notes) == ["1 of 4 lines skipped: damaged"]


def test_what_cannot_be_read_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="does not exist"):
        diagnose(tmp_path / "missing")
    with pytest.raises(UnreadableInput, match="contains no log and no checkpoint"):
        diagnose(tmp_path)
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(UnreadableInput, match="is not supported"):
        diagnose(text)
    (tmp_path / "run.json").write_text("hello")
    with pytest.raises(UnreadableInput, match="is not a run header"):
        diagnose(tmp_path)


def test_a_damaged_run_is_diagnosed_or_refused_and_nothing_else() -> None:
    rng = random.Random(0)
    with quick_folder() as folder:
        a_run(folder, [1.0] * 30 + [math.nan])
        whole = {path: path.read_bytes() for path in sorted(folder.glob("*.json*"))}
        for _ in range(150):
            path = rng.choice(list(whole))
            path.write_bytes(mutated(whole[path], rng))
            with contextlib.suppress(UnreadableInput):
                json.loads(diagnose(folder).to_json())
            path.write_bytes(whole[path])


def test_a_report_cannot_be_changed() -> None:
    told = report()
    with pytest.raises(AttributeError):
        told.command = "scan"  # type: ignore[misc]
    assert replace(told, command="scan").command == "scan"


def test_a_report_and_a_finding_are_printed_for_people(tmp_path: Path) -> None:
    where = Where(file="train.py", line=15)
    finding = Finding("HD101", "nonfinite-loss", Severity.ERROR, 6, "loss is NaN", where)
    assert str(finding) == "error HD101 nonfinite-loss at step 6, train.py:15: loss is NaN"
    [cause] = causes_of([finding])
    assert str(cause) == str(finding)
    report = replace(Report.from_engine(Engine(), command="diagnose"))
    printed = str(report.with_findings([finding]))
    assert "HD101 nonfinite-loss  step 6" in printed
    assert "\x1b" not in printed
    assert "Finding(" not in printed
