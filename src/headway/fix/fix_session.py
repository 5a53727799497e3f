"""Tries the edits of findings one by one in fresh runs, and keeps those that are confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.core.findings import SourceEdit
from headway.fix.fresh_run import RunResult
from headway.fix.project import Contents, EditRefused, Project
from headway.fix.verdict import find_new, find_objection, find_same, line_mapping

MOST_RUNS = 24
"""Fresh runs of one session, each of which takes as long as a check."""
MOST_JOINED = 3
"""Edits that may be needed together, where the first bad number hides a second one."""

JsonFinding = Mapping[str, Any]
JsonRemedy = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FixOutcome:
    """An edit that was tried, or refused."""

    finding: JsonFinding
    remedy: JsonRemedy
    kept: bool
    why: str = ""
    """Why it was not kept."""
    diff: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.finding["code"],
            "where": self.finding["where"],
            "text": self.remedy["text"],
            "kept": self.kept,
            "why": self.why,
            "diff": self.diff,
        }


@dataclass
class FixSession:
    """Improves a script step by step, in memory."""

    project: Project
    run: Callable[[Contents], RunResult]
    unsafe: bool = False
    on_trial: Callable[[JsonFinding], None] = lambda finding: None
    contents: dict[str, bytes] = field(default_factory=dict)
    """The files after the edits that were kept."""
    outcomes: list[FixOutcome] = field(default_factory=list)
    unsafe_left: int = 0
    """Edits that were not tried because they are unsafe."""
    _runs: int = 0

    def improve(self, first: RunResult) -> RunResult:
        """Try the edits of all findings; returns the last run that was kept."""
        result, tried = first, set[tuple[Any, ...]]()
        while (kept := self._next_kept(result, tried)) is not None:
            result = kept
        left = [remedy for item in result.findings for remedy in item["remedies"]]
        if not self.unsafe:
            self.unsafe_left = sum(bool(item["edits"]) and not item["safe"] for item in left)
        return result

    def _next_kept(self, result: RunResult, tried: set[tuple[Any, ...]]) -> RunResult | None:
        for finding in ordered(result.report):
            for remedy in self._usable(finding):
                key = (finding["code"], remedy["text"], finding["where"]["line"])
                if key in tried:
                    continue
                tried.add(key)
                found = self._try(finding, remedy, result)
                if found is not None:
                    return found
        return None

    def _try(self, finding: JsonFinding, remedy: JsonRemedy, before: RunResult) -> RunResult | None:
        self.on_trial(finding)
        try:
            found = self._trial(finding, remedy, before, {}, MOST_JOINED)
        except EditRefused as refused:
            found = str(refused)
        if isinstance(found, str):
            self.outcomes.append(FixOutcome(finding, remedy, kept=False, why=found))
            return None
        after, changed = found
        earlier = dict(self.contents)
        self.contents.update(changed)
        diff = self.project.diff_between(earlier, self.contents)
        self.outcomes.append(FixOutcome(finding, remedy, kept=True, diff=diff))
        return after

    def _trial(
        self,
        finding: JsonFinding,
        remedy: JsonRemedy,
        before: RunResult,
        changed: Contents,
        depth: int,
    ) -> tuple[RunResult, Contents] | str:
        """The run with the edit and the changed files, or why it is not kept."""
        if self._runs >= MOST_RUNS:
            return f"the limit of {MOST_RUNS} runs was reached"
        current = {**self.contents, **changed}
        changed = {**changed, **self.project.edited(read_edits(remedy), current)}
        current.update(changed)
        self._runs += 1
        after = self.run(current)
        map_line = line_mapping({**self.contents}, current)
        objection = find_objection(finding, remedy, before, after, map_line)
        if not objection:
            return after, changed
        hidden = find_new(before, after, map_line) if after.report is not None else []
        if depth > 1 and len(hidden) == 1 and find_same(finding, after, map_line) is None:
            for next_remedy in self._usable(hidden[0]):
                joined = {**remedy, "edits": next_remedy["edits"]}
                found = self._trial(finding, joined, before, changed, depth - 1)
                if not isinstance(found, str):
                    return found
        return objection

    def _usable(self, finding: JsonFinding) -> Iterator[JsonRemedy]:
        """Remedies with edits, tested ones first; one that failed on the step is not tried."""
        for remedy in sorted(finding["remedies"], key=lambda item: not item["tested"]):
            if remedy["edits"] and remedy["cured"] is not False and (self.unsafe or remedy["safe"]):
                yield remedy


def ordered(report: Mapping[str, Any] | None) -> Sequence[JsonFinding]:
    """The findings: root causes first."""
    if report is None:
        return ()
    roots = [cause["code"] for cause in report["causes"]]
    rank = {code: at for at, code in enumerate(roots)}
    return sorted(report["findings"], key=lambda item: rank.get(item["code"], len(roots)))


def read_edits(remedy: JsonRemedy) -> list[SourceEdit]:
    """The edits of a remedy in a JSON report. Raises EditRefused if they are damaged."""
    edits = [SourceEdit.from_dict(item) for item in remedy["edits"]]
    if not edits or None in edits:
        raise EditRefused("the report contains an edit that cannot be read")
    return [edit for edit in edits if edit is not None]
