"""Two runs compared: the finding, new ones, losses, lines that moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.fix.fresh_run import RunResult
from headway.fix.verdict import find_objection, line_mapping

FILE = "/project/train.py"


def finding(code: str = "HD201", line: int | None = 4, step: int = 2) -> dict[str, Any]:
    where = {"file": FILE if line else None, "line": line, "module": None, "op": None}
    return {"code": code, "name": "name", "severity": "error", "step": step, "where": where}


def run(
    *findings: dict[str, Any], losses: dict[int, float] | None = None, **more: Any
) -> RunResult:
    report = {"findings": [*findings], "causes": [], "steps": more.pop("steps", 6)}
    return RunResult(report, losses or {0: 1.0, 1: 0.5}, **more)


def same(file: str, line: int) -> int:
    return line


REMEDY = {"same_loss": True}
BAD = finding()


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (run(), ""),
        (run(finding()), "the finding is still there"),
        (run(finding(line=9)), "a new finding appeared"),
        (run(finding("HD403", line=None)), "a new finding appeared: HD403"),
        (run(steps=5), "took 5 steps instead of 6"),
        (run(error="ValueError: no"), "fails: ValueError: no"),
        (RunResult(None, error="timeout"), "could not be checked: timeout"),
        (run(losses={0: 1.0, 1: 0.501}), "the loss of step 1 changes from 0.5 to 0.501"),
        (run(losses={0: 1.0}), "the loss of step 1 changes"),
        (run(losses={0: 1.0, 1: 0.5000001, 2: 3.0}), ""),
    ],
)
def test_an_edit_is_kept_only_without_objection(after: RunResult, why: str) -> None:
    found = find_objection(BAD, REMEDY, run(BAD), after, same)
    assert why in found
    assert bool(found) == bool(why)


def test_a_replay_decides_by_its_step() -> None:
    assert find_objection(BAD, REMEDY, run(BAD), RunResult(None, cured=True), same) == ""
    fails = RunResult(None, cured=False, error="the loss is NaN")
    assert find_objection(BAD, REMEDY, run(BAD), fails, same) == (
        "the step still fails: the loss is NaN"
    )


def test_an_info_finding_is_no_objection_and_a_loss_may_change_without_a_promise() -> None:
    info = {**finding("HD113"), "severity": "info"}
    after = run(info, losses={0: 7.0})
    assert find_objection(BAD, {"same_loss": False}, run(BAD), after, same) == ""


def test_only_steps_before_a_bad_number_must_keep_their_loss() -> None:
    before, after = run(BAD, losses={0: 1.0, 2: 9.0}), run(losses={0: 1.0, 2: 4.0})
    assert find_objection(BAD, REMEDY, before, after, same) == ""
    leak = finding("HD803")
    assert "step 2" in find_objection(leak, REMEDY, run(leak, losses={2: 9.0}), after, same)


def test_lines_are_followed_through_an_edit(tmp_path: Path) -> None:
    path = str(tmp_path / "train.py")
    old = b"a\nb\nc\nd\n"
    mapped = line_mapping({path: old}, {path: b"new\na\nB1\nB2\nd\n"})
    assert [mapped(path, line) for line in (1, 2, 3, 4)] == [2, 3, 4, 5]
    assert line_mapping({path: old}, {path: b"a\nd\n"})(path, 2) is None
    assert line_mapping({path: old}, {path: b"a\nd\n"})(path, 4) == 2
    assert mapped("/elsewhere.py", 7) == 7
