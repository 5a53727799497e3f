"""Edits tried one by one: kept, refused, joined, limited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.fix.fix_session import FixSession
from headway.fix.fresh_run import RunResult
from headway.fix.project import Contents, Project
from headway.torch_adapters.source import SourceFile

FAULTS = {"FAULT1": "HD201", "FAULT2": "HD110"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("one = 'FAULT1'\ntwo = 'FAULT2'\n")
    return path


def checked(script: Path, contents: Contents, **more: Any) -> RunResult:
    """Each FAULT in the text is a finding, with an edit that removes it."""
    content = contents.get(str(script.resolve()), script.read_bytes())
    file = SourceFile(str(script), content)
    findings = []
    for number, line in enumerate(file.text.splitlines(), start=1):
        for word, code in FAULTS.items():
            if word in line:
                at = file.text.index(word)
                edit = file.edit(at, at + len(word), more.get("new", "fine"))
                remedy = {
                    "text": f"replace {word}",
                    "tested": False,
                    "cured": None,
                    "edits": [edit.to_dict()],
                    "safe": more.get("safe", True),
                    "same_loss": False,
                }
                where = {"file": str(script), "line": number, "module": None, "op": None}
                findings.append(
                    {
                        "code": code,
                        "name": "n",
                        "severity": "error",
                        "step": 0,
                        "where": where,
                        "remedies": [remedy],
                    }
                )
    return RunResult({"findings": findings, "causes": [], "steps": 3})


def session_of(script: Path, run: Callable[[Contents], RunResult], **more: Any) -> FixSession:
    return FixSession(Project(script), run, **more)


def test_all_edits_are_kept_one_after_the_other(script: Path) -> None:
    session = session_of(script, lambda contents: checked(script, contents))
    last = session.improve(checked(script, {}))
    assert last.findings == []
    assert [item.kept for item in session.outcomes] == [True, True]
    assert session.contents == {str(script.resolve()): b"one = 'fine'\ntwo = 'fine'\n"}
    assert "-one = 'FAULT1'" in session.outcomes[0].diff
    assert "FAULT2'\n+" not in session.outcomes[0].diff
    assert "FAULT1" in script.read_text()


def test_an_edit_that_does_not_help_is_not_kept(script: Path) -> None:
    session = session_of(script, lambda contents: checked(script, contents))
    session.improve(checked(script, {}, new="FAULT1 FAULT2"))
    assert [item.kept for item in session.outcomes] == [False, False]
    assert session.contents == {}
    assert session.outcomes[0].why == "the finding is still there"


def test_an_edit_that_uncovers_a_fault_is_tried_with_the_edit_of_that_fault(script: Path) -> None:
    script.write_text("one = 'FAULT1'\ntwo = 'SLEEPING'\n")

    def run(contents: Contents) -> RunResult:
        text = contents.get(str(script.resolve()), script.read_bytes())
        if b"FAULT1" not in text and b"SLEEPING" in text:
            text = text.replace(b"SLEEPING", b"FAULT2")
            found = checked(script, {str(script.resolve()): text}, new="fine")
            for finding in found.findings:
                for edit in finding["remedies"][0]["edits"]:
                    file = SourceFile(str(script), contents[str(script.resolve())])
                    at = file.text.index("SLEEPING")
                    edit.update(file.edit(at, at + 8, "fine").to_dict())
            return found
        return checked(script, contents)

    session = session_of(script, run)
    session.improve(run({}))
    assert [item.kept for item in session.outcomes] == [True]
    assert session.contents == {str(script.resolve()): b"one = 'fine'\ntwo = 'fine'\n"}


def test_unsafe_edits_are_tried_only_if_wanted(script: Path) -> None:
    def run(contents: Contents) -> RunResult:
        return checked(script, contents, safe=False)

    session = session_of(script, run)
    session.improve(run({}))
    assert session.outcomes == []
    assert session.unsafe_left == 2
    session = session_of(script, run, unsafe=True)
    session.improve(run({}))
    assert [item.kept for item in session.outcomes] == [True, True]


def test_a_refused_edit_is_reported(script: Path) -> None:
    first = checked(script, {})
    script.write_text("one = 'FAULT1' \ntwo = 'FAULT2'\n")
    session = session_of(script, lambda contents: checked(script, contents))
    session.improve(first)
    assert {item.why for item in session.outcomes} == {
        f"{script.resolve()} has changed since it was read"
    }
