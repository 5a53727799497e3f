"""Compares the runs before and after an edit."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.core.incident_events import SYMPTOMS
from headway.fix.fresh_run import RunResult
from headway.fix.project import Contents

SAME_LOSS = 1e-5
"""Relative difference of two losses that are the same: another order of summation."""
SHOWN = ("warning", "error")
OF_ONE_STEP = frozenset({*SYMPTOMS, "HD102", "HD301", "HD302", "HD408", "HD501"})
"""Findings about the numbers of one step: the steps before it are healthy."""

FindingKey = tuple[Any, ...]
MapLine = Callable[[str, int], int | None]


def find_objection(
    finding: Mapping[str, Any],
    remedy: Mapping[str, Any],
    before: RunResult,
    after: RunResult,
    map_line: MapLine,
) -> str:
    """Why an edit must not be kept; empty if the run confirms it."""
    if after.cured is not None:  # a replay has no other findings
        return "" if after.cured else f"the step still fails: {after.error}"
    if after.report is None:
        return f"the edited script could not be checked: {after.error}"
    if after.error and not before.error:
        return f"the edited script fails: {after.error}"
    if after.steps < before.steps:
        return f"the edited script took {after.steps} steps instead of {before.steps}"
    if find_same(finding, after, map_line) is not None:
        return "the finding is still there"
    new = find_new(before, after, map_line)
    if new:
        first = new[0]
        return f"a new finding appeared: {first['code']} {first['name']}"
    return _loss_objection(finding, before, after) if remedy["same_loss"] else ""


def find_same(
    finding: Mapping[str, Any], after: RunResult, map_line: MapLine
) -> Mapping[str, Any] | None:
    """The same finding in the run after the edit."""
    key = _key(finding, map_line)
    return next((item for item in after.findings if _key(item) == key), None)


def find_new(before: RunResult, after: RunResult, map_line: MapLine) -> list[Mapping[str, Any]]:
    """Findings that only the run after the edit has."""
    known = {_key(item, map_line) for item in before.findings}
    return [
        item for item in after.findings if item["severity"] in SHOWN and _key(item) not in known
    ]


def _key(finding: Mapping[str, Any], map_line: MapLine | None = None) -> FindingKey:
    where = finding["where"]
    if where["file"] is None or where["line"] is None:
        return finding["code"], None, where["module"] or where["op"]
    line = where["line"] if map_line is None else map_line(where["file"], where["line"])
    return finding["code"], where["file"], line


def _loss_objection(finding: Mapping[str, Any], before: RunResult, after: RunResult) -> str:
    """The steps before a bad number, or all steps for any other fault, keep their losses."""
    last = finding["step"] if finding["code"] in OF_ONE_STEP else None
    for step, loss in before.losses.items():
        if last is not None and step >= last:
            continue
        other = after.losses.get(step, math.nan)
        if not math.isclose(loss, other, rel_tol=SAME_LOSS, abs_tol=1e-8):
            return f"the loss of step {step} changes from {loss:.6g} to {other:.6g}"
    return ""


def line_mapping(old: Contents, new: Contents) -> MapLine:
    """Where a line of the old contents is in the new ones; None if it was removed."""
    mapped: dict[str, dict[int, int]] = {}
    for path in {**old, **new}:
        before, after = (_lines(contents.get(path), path) for contents in (old, new))
        found = mapped.setdefault(path, {})
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        for kind, start, end, new_start, new_end in matcher.get_opcodes():
            if kind == "equal" or (kind == "replace" and end - start <= new_end - new_start):
                # The last of the new lines contain the changed one: others are put before it.
                first = new_start if kind == "equal" else new_end - (end - start)
                found.update({start + at + 1: first + at + 1 for at in range(end - start)})

    def map_line(file: str, line: int) -> int | None:
        return mapped[file].get(line) if file in mapped else line

    return map_line


def _lines(content: bytes | None, path: str) -> list[bytes]:
    return (Path(path).read_bytes() if content is None else content).splitlines()
