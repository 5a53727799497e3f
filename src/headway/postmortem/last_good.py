"""Finds the last clean checkpoint before the fault, and adds the results of the scan to the
report.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.checks.checkpoint_tensors import short_name
from headway.config import Settings
from headway.core.findings import Finding, NotRun, Remedy, Severity
from headway.diagnosis import Cause
from headway.diagnosis import diagnose as find_causes
from headway.engine import Engine
from headway.errors import UnreadableInput
from headway.postmortem.scan import ScannedCheckpoint, ScanNotes, judge
from headway.report import Coverage, Report

if TYPE_CHECKING:
    pass


# Only checkpoints that were scanned are recommended: one from before the onset may already contain
# a NaN that the log does not show yet.

SCAN_ALL = 4 << 30
"""Bytes up to which all checkpoints are scanned; above it, only those that are needed."""
BROKEN_STATE = {
    *("HD101", "HD102", "HD104", "HD201", "HD202", "HD301", "HD302", "HD303", "HD308", "HD311"),
    *("HD313", "HD403", "HD406", "HD408", "HD501", "HD602", "HD701"),
}
"""Causes that damage the weights."""
FOUND_BY_SCAN = {"HD101", "HD102", "HD201", "HD301", "HD302", "HD408", "HD602", "HD701"}
"""Causes that a scan finds."""


@dataclass
class CheckpointSearch:
    """The checkpoints of a run and the results of those that were scanned."""

    paths: Sequence[Path]
    settings: Settings
    engine: Engine | None = None
    scanned: ScanNotes = field(default_factory=ScanNotes)
    whole: bool = False
    """Whether all were scanned."""

    @classmethod
    def at(cls, paths: Sequence[Path], settings: Settings) -> CheckpointSearch:
        """Scans all checkpoints, or only the newest if they are large."""
        search = cls(paths, settings)
        search.whole = sum(_size(path) for path in paths) <= SCAN_ALL
        if paths:
            try:
                first = list(paths) if search.whole else [paths[-1]]
                search.engine, search.scanned = judge(first, settings)
            except UnreadableInput:
                search.engine = None  # the only file cannot be opened
        return search

    def before(self, onset: int | None) -> ScannedCheckpoint | None:
        """The last clean checkpoint before a step; of all checkpoints without a step."""
        if not self.whole:
            return self._back_from(onset)
        fitting = [
            item for item in self.scanned.checkpoints if item.clean and _is_before(item.step, onset)
        ]
        return fitting[-1] if fitting else None

    def _back_from(self, onset: int | None) -> ScannedCheckpoint | None:
        from headway.checkpoints.checkpoint_discovery import open_checkpoint

        known = {item.path: item for item in self.scanned.checkpoints}
        for path in reversed(self.paths):
            found = known.get(str(path))
            if found is None:
                try:
                    if not _is_before(open_checkpoint(path).step, onset):
                        continue
                    _, notes = judge([path], self.settings)
                except UnreadableInput:
                    continue
                found = notes.checkpoints[-1] if notes.checkpoints else None
                if found is not None:
                    self.scanned.checkpoints.insert(0, found)
            if found is not None and found.clean and _is_before(found.step, onset):
                return found
        return None


def with_rollback_advice(report: Report, search: CheckpointSearch, *, unit: str = "step") -> Report:
    """The report, with the checkpoint to resume from as first remedy of the first cause.

    `unit` is what the log counts. If the checkpoints count something else, a clean checkpoint may
    be from after the onset: then only causes that a scan finds get this remedy.
    """
    if not report.causes or not search.scanned.checkpoints:
        return report
    cause = report.causes[0]
    root = cause.root
    if root.code not in BROKEN_STATE or root.severity < Severity.WARNING:
        return report
    if any(_harmless(item) for item in (root, *cause.symptoms) if item.step == root.step):
        return report
    alike = all(item.counts == unit for item in search.scanned.checkpoints)
    if not alike and root.code not in FOUND_BY_SCAN:
        return report
    onset = root.step if alike else None
    good = search.before(onset)
    text = _text(good, onset) if good is not None else _none(search, onset)
    evidence: dict[str, Any] = {**root.evidence, "last_good": None if good is None else good.path}
    advised = replace(root, remedies=(Remedy(text), *root.remedies), evidence=evidence)
    return _with(report, root, advised)


def _harmless(finding: Finding) -> bool:
    """Whether the weights are not affected: the update was skipped, or the values recovered."""
    return finding.evidence.get("held") is True or finding.evidence.get("recovered") is True


def _text(good: ScannedCheckpoint, onset: int | None) -> str:
    name = short_name(good.path)
    if good.step is None or onset is None:
        return f"Resume from {name} ({good.summary()})."
    return (
        f"Resume from {name} ({good.counts} {good.step}, before the onset at {onset}; "
        f"{good.tensors} tensors, all finite)."
    )


def _none(search: CheckpointSearch, onset: int | None) -> str:
    count = len(search.paths)
    before = "" if onset is None else f" before the onset at {onset}"
    which = "The only checkpoint" if count == 1 else f"None of the {count} checkpoints"
    verb = "is not clean" if count == 1 else "is clean"
    return f"{which}{before} {verb}: restart from the initial weights."


def _with(report: Report, old: Finding, new: Finding) -> Report:
    """The report with one finding replaced."""
    return replace(
        report,
        findings=[new if item is old else item for item in report.findings],
        causes=[
            Cause(new, cause.symptoms) if cause.root is old else cause for cause in report.causes
        ],
    )


def _is_before(step: int | None, onset: int | None) -> bool:
    return onset is None or (step is not None and step < onset)


def _size(path: Path) -> int:
    try:
        if not path.is_dir():
            return path.stat().st_size
        return sum(
            os.stat(os.path.join(folder, name)).st_size
            for folder, _, names in os.walk(path)
            for name in names
        )
    except OSError:
        return 0


WEIGHT_CODES = ("HD301", "HD302", "HD408")
"""Checks that repeat HD701 tensor by tensor."""


def add_checkpoint_findings(report: Report, search: CheckpointSearch, segment: int) -> Report:
    """The report on the log, with the findings in the checkpoints."""
    if search.engine is None:
        return report
    saved = [
        _after_log(item, segment, number)
        for number, item in enumerate(search.engine.findings)
        if item.code not in WEIGHT_CODES
    ]
    findings = [*report.findings, *saved]
    checked = {item.code: item for item in search.engine.not_run()}
    names = set(search.engine.codes)
    not_run = [item for item in report.not_run if item.code not in names or item.code in checked]
    return replace(
        report,
        findings=findings,
        causes=find_causes(findings),
        not_run=[_reason(item, checked) for item in not_run],
        coverage=Coverage(report.coverage.of - len(not_run), report.coverage.of),
    )


def _reason(item: NotRun, checked: dict[str, NotRun]) -> NotRun:
    """Of two reasons, the one about the checkpoints."""
    other = checked.get(item.code)
    return other if other is not None and "checkpoint" in item.reason else item


def describe_scan(search: CheckpointSearch) -> list[str]:
    count, all_of_them = len(search.scanned.checkpoints), len(search.paths)
    if search.whole:
        return ["1 checkpoint was scanned" if count == 1 else f"{count} checkpoints were scanned"]
    return [f"{count} of {all_of_them} checkpoints were scanned; `headway scan` reads all"]


def _after_log(finding: Finding, segment: int, number: int) -> Finding:
    """A finding in a checkpoint, ordered after those in the log."""
    return replace(finding, segment=segment, seq=(1 << 40) + number)
