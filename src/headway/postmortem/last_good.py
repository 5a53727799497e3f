"""Finds the last checkpoint before the fault that a scan saw to be clean, and adds the scan to the
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


# From the onset back to the last checkpoint that was seen to be clean.

# No checkpoint is named that was not looked through: a file from before the onset may hold a NaN
# that the log had not shown yet.

SCAN_ALL = 4 << 30
"""Bytes of checkpoints that are all looked through; of more, only those that are needed."""
BROKEN_STATE = {
    *("HD101", "HD102", "HD104", "HD201", "HD202", "HD301", "HD302", "HD303", "HD308", "HD311"),
    *("HD313", "HD403", "HD406", "HD408", "HD501", "HD602", "HD701"),
}
"""Causes after which the weights are worth less than they were."""
LEAVES_A_TRACE = {"HD101", "HD102", "HD201", "HD301", "HD302", "HD408", "HD602", "HD701"}
"""Those that a scan would see."""


@dataclass
class CheckpointSearch:
    """The checkpoints of a run, as far as they were looked through."""

    paths: Sequence[Path]
    settings: Settings
    engine: Engine | None = None
    watched: ScanNotes = field(default_factory=ScanNotes)
    whole: bool = False
    """Whether all of them were."""

    @classmethod
    def at(cls, paths: Sequence[Path], settings: Settings) -> CheckpointSearch:
        """Scan all of them, or where that would take long, the newest."""
        looked = cls(paths, settings)
        looked.whole = sum(_size(path) for path in paths) <= SCAN_ALL
        if paths:
            try:
                first = list(paths) if looked.whole else [paths[-1]]
                looked.engine, looked.watched = judge(first, settings)
            except UnreadableInput:
                looked.engine = None  # a single file, and it cannot be opened: nothing to go by
        return looked

    def before(self, onset: int | None) -> ScannedCheckpoint | None:
        """The last clean one before a step; without a step, the last clean one there is."""
        if not self.whole:
            return self._back_from(onset)
        fitting = [
            item for item in self.watched.checkpoints if item.clean and _is_before(item.step, onset)
        ]
        return fitting[-1] if fitting else None

    def _back_from(self, onset: int | None) -> ScannedCheckpoint | None:
        from headway.checkpoints.checkpoint_discovery import open_checkpoint

        known = {item.path: item for item in self.watched.checkpoints}
        for path in reversed(self.paths):
            found = known.get(str(path))
            if found is None:
                try:
                    if not _is_before(open_checkpoint(path).step, onset):
                        continue
                    _, watched = judge([path], self.settings)
                except UnreadableInput:
                    continue
                found = watched.checkpoints[-1] if watched.checkpoints else None
                if found is not None:
                    self.watched.checkpoints.insert(0, found)
            if found is not None and found.clean and _is_before(found.step, onset):
                return found
        return None


def with_rollback_advice(report: Report, looked: CheckpointSearch, *, unit: str = "step") -> Report:
    """The report, with the checkpoint to go on from first among the remedies of the first cause.

    `unit` is what the log counts. Where the checkpoints count something else, only a cause that
    leaves its trace in them can be answered: a clean one is not yet one from before the onset.
    """
    if not report.causes or not looked.watched.checkpoints:
        return report
    cause = report.causes[0]
    root = cause.root
    if root.code not in BROKEN_STATE or root.severity < Severity.WARNING:
        return report
    if any(_harmless(item) for item in (root, *cause.symptoms) if item.step == root.step):
        return report
    alike = all(item.counts == unit for item in looked.watched.checkpoints)
    if not alike and root.code not in LEAVES_A_TRACE:
        return report
    onset = root.step if alike else None
    good = looked.before(onset)
    text = _text(good, onset) if good is not None else _none(looked, onset)
    evidence: dict[str, Any] = {**root.evidence, "last_good": None if good is None else good.path}
    told = replace(root, remedies=(Remedy(text), *root.remedies), evidence=evidence)
    return _with(report, root, told)


def _harmless(finding: Finding) -> bool:
    """Whether the weights never saw it: it was held back, or was finite again by itself."""
    return finding.evidence.get("held") is True or finding.evidence.get("recovered") is True


def _text(good: ScannedCheckpoint, onset: int | None) -> str:
    name = short_name(good.path)
    if good.step is None or onset is None:
        return f"Go on from {name} ({good.said()})."
    return (
        f"Go on from {name} ({good.counts} {good.step}, before the onset at {onset}; "
        f"{good.tensors} tensors, all finite)."
    )


def _none(looked: CheckpointSearch, onset: int | None) -> str:
    count = len(looked.paths)
    before = "" if onset is None else f" before the onset at {onset}"
    return (
        f"None of the {count} checkpoints here is from{before} and clean: begin again from the "
        "weights you started with."
        if before
        else f"None of the {count} checkpoints here is clean: begin again from the weights you "
        "started with."
    )


def _with(report: Report, old: Finding, new: Finding) -> Report:
    """The report with one finding in another's place."""
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
"""What HD701 says of a saved state once more, tensor by tensor."""


def add_checkpoint_findings(report: Report, looked: CheckpointSearch, segment: int) -> Report:
    """What the log and the checkpoints say, as one report."""
    if looked.engine is None:
        return report
    saved = [
        _after_log(item, segment, number)
        for number, item in enumerate(looked.engine.findings)
        if item.code not in WEIGHT_CODES
    ]
    findings = [*report.findings, *saved]
    checked = {item.code: item for item in looked.engine.not_run()}
    names = set(looked.engine.codes)
    not_run = [item for item in report.not_run if item.code not in names or item.code in checked]
    return replace(
        report,
        findings=findings,
        causes=find_causes(findings),
        not_run=[_reason(item, checked) for item in not_run],
        coverage=Coverage(report.coverage.of - len(not_run), report.coverage.of),
    )


def _reason(item: NotRun, checked: dict[str, NotRun]) -> NotRun:
    """Of two reasons the one that says what the checkpoints lack."""
    other = checked.get(item.code)
    return other if other is not None and "checkpoint" in item.reason else item


def describe_scan(looked: CheckpointSearch) -> list[str]:
    count, all_of_them = len(looked.watched.checkpoints), len(looked.paths)
    if looked.whole:
        return [f"{count} checkpoints were looked through"]
    return [f"{count} of {all_of_them} checkpoints were looked through; `headway scan` reads all"]


def _after_log(finding: Finding, segment: int, number: int) -> Finding:
    """A finding of a checkpoint, after all that the log has told."""
    return replace(finding, segment=segment, seq=(1 << 40) + number)
