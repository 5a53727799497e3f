"""Scans checkpoints: every tensor and optimizer moment, without torch and without running anything
in them.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import registry
from headway.checks.checkpoint_tensors import (
    CHECKPOINT,
    count_elements,
    has_unintended_nonfinite,
    is_step_count,
    short_name,
)
from headway.config import Settings
from headway.core.check import Check
from headway.core.facts import Facts
from headway.core.findings import Finding
from headway.core.numbers import natural_order, say
from headway.core.records import EventRecord, Record, TensorRecord
from headway.engine import Engine
from headway.errors import UnreadableInput
from headway.postmortem.run_settings import settings_beside
from headway.report import Report
from headway.rundir.remote_run import fetch_run
from headway.rundir.run_files import input_path, is_url

if TYPE_CHECKING:
    from headway.checkpoints.checkpoint_info import Checkpoint


# The result for each checkpoint, collected from the records.

PROBLEMS = ("unreadable-checkpoint", "unsafe-pickle", "unknown-code")
_EPOCH = re.compile(r"ep(?:och)?s?[=_\-.]?(\d{1,9})", re.I)
GROWTH = 10.0
"""Factor between two checkpoints above which the growth of the weight norm is noted."""


@dataclass
class ScannedCheckpoint:
    """The result of scanning one checkpoint."""

    path: str
    format: str = ""
    step: int | None = None
    counts: str = "step"
    """What `step` counts: `epoch` if the file has nothing else."""
    tensors: int = 0
    bytes: int = 0
    nonfinite: int = 0
    """Non-finite elements in weights, buffers and moments."""
    bad_tensors: int = 0
    problems: list[str] = field(default_factory=list)
    square: float = 0.0
    """Squared norm of all weights."""
    elements: int = 0
    bad_elements: int = 0
    """Of the weights."""

    @property
    def clean(self) -> bool:
        """Whether it is complete and finite, and names only what builds data."""
        return not self.problems and not self.bad_tensors and self.tensors > 0

    @property
    def verdict(self) -> str:
        """The result in one word."""
        if "unsafe-pickle" in self.problems:
            return "unsafe"
        if "unreadable-checkpoint" in self.problems:
            return "unreadable"
        if self.bad_tensors:
            return "dead" if 0 < self.elements == self.bad_elements else "NaN or Inf"
        if self.problems:
            return "unknown code"
        return "clean" if self.tensors else "empty"

    def summary(self) -> str:
        """For a message: `step 400; 123 tensors, all finite`."""
        step = "" if self.step is None else f"{self.counts} {self.step}; "
        return f"{step}{self.tensors} tensors, all finite"

    def to_dict(self) -> dict[str, Any]:
        """The entry in the sources of a report."""
        return {
            "path": self.path,
            "format": self.format,
            "step": self.step,
            "tensors": self.tensors,
            "bytes": self.bytes,
            "nonfinite": self.nonfinite,
            "verdict": self.verdict,
            "clean": self.clean,
        }


def _counts(path: str, step: int | None, epoch: int | None) -> str:
    """Whether the step of a checkpoint is a step or an epoch."""
    name = Path(path).name
    named = _EPOCH.search(name)
    by_name = named is not None and int(named[1]) == step and "step" not in name.lower()
    return "epoch" if step is not None and (step == epoch or by_name) else "step"


@dataclass
class ScanNotes:
    """Collects results from the records of a scan, and adds the settings beside the checkpoints."""

    checkpoints: list[ScannedCheckpoint] = field(default_factory=list)

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        """Passes the records on."""
        for record in records:
            if isinstance(record, EventRecord):
                yield self._event(record)
            elif isinstance(record, TensorRecord):
                yield self._tensor(record)
            else:
                yield record

    def _event(self, record: EventRecord) -> EventRecord:
        facts = Facts.of(record)
        if record.kind == CHECKPOINT:
            path = facts.text("path") or ""
            found = ScannedCheckpoint(path, facts.text("format") or "", facts.whole("step"))
            found.counts = _counts(path, found.step, facts.table("facts").whole("epoch"))
            found.bytes = facts.whole("bytes") or 0
            found.tensors = facts.whole("tensors") or 0
            self.checkpoints.append(found)
            settings = settings_beside(Path(path)) if path else {}
            return replace(record, data={**record.data, "settings": settings})
        if record.kind in PROBLEMS and self.checkpoints:
            self.checkpoints[-1].problems.append(record.kind)
        return record

    def _tensor(self, record: TensorRecord) -> TensorRecord:
        if not self.checkpoints:
            return record
        found = self.checkpoints[-1]
        if record.role == "weight":
            norm = record.stats.get("norm", 0.0)
            found.square += norm * norm if math.isfinite(norm) else 0.0
            found.elements += count_elements(record, "numel")
        if has_unintended_nonfinite(record):
            bad = count_elements(record, "nan") + count_elements(record, "inf")
            found.bad_tensors += 1
            found.nonfinite += bad
            found.bad_elements += bad if record.role == "weight" else 0
        if record.role == "other" and is_step_count(record.name):
            return replace(record, role="moment")  # the checks know optimizer state as moments
        return record

    @property
    def last_clean(self) -> ScannedCheckpoint | None:
        """The last clean checkpoint, in the order of steps."""
        return next((item for item in reversed(self.checkpoints) if item.clean), None)

    def notes(self) -> list[str]:
        """Notes for the report that are not findings."""
        notes = []
        for before, now in pairwise(self.checkpoints):
            first, second = math.sqrt(before.square), math.sqrt(now.square)
            same = before.clean and not now.problems and now.elements == before.elements
            if same and first > 0 and second > GROWTH * first:
                notes.append(
                    f"the norm of all weights grew from {say(first)} in {short_name(before.path)} "
                    f"to {say(second)} in {short_name(now.path)}"
                )
        return notes


# Scanning.

Progress = Callable[..., Any]


def scan(
    path: str | Path | Sequence[str | Path],
    *,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Scans a checkpoint, or all checkpoints in a folder.

    Does not import torch, and executes nothing in the files. Raises `UnreadableInput` where
    there is no checkpoint.
    """
    from headway.checkpoints.folder_access import scanning

    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    given = [fetch_run(item) if is_url(item) else input_path(item) for item in paths]
    with scanning(given) as left_out:
        found = [one for item in given for one in checkpoints_at(item, left_out)]
        return scan_paths(list(dict.fromkeys(found)), settings, progress=progress, links=left_out)


def scan_paths(
    paths: Sequence[Path],
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    links: Mapping[Path, Path] = {},
) -> Report:
    """The report on these checkpoints, in this order. `links`: those that were not followed."""
    from headway.checkpoints.folder_access import describe_left_out

    engine, scanned = judge(paths, settings, progress=progress)
    notes = [note for note in (*scanned.notes(), describe_left_out(links)) if note]
    report = without_steps(Report.from_engine(engine, command="scan", notes=notes), scanned)
    named = replace(report, sources=[item.to_dict() for item in scanned.checkpoints])
    if len(scanned.checkpoints) < 2:
        return named
    from headway.postmortem.last_good import CheckpointSearch, with_rollback_advice

    search = CheckpointSearch(paths, settings or Settings(), engine, scanned, whole=True)
    return with_rollback_advice(named, search, unit=scanned.checkpoints[0].counts)


def without_steps(report: Report, scanned: ScanNotes) -> Report:
    """Removes the steps of checkpoints without one: their records have a position instead."""
    unknown = {item.path for item in scanned.checkpoints if item.step is None}
    alone = len(unknown) == len(scanned.checkpoints)
    changed: dict[int, Finding] = {}
    at = {item.step for item in report.findings if item.evidence.get("path") in unknown}
    for finding in report.findings:
        path = finding.evidence.get("path")
        if alone or path in unknown or (path is None and finding.step in at):
            evidence = {key: v for key, v in finding.evidence.items() if key != "last_step"}
            changed[id(finding)] = replace(finding, step=None, evidence=evidence)

    def renewed(finding: Finding) -> Finding:
        return changed.get(id(finding), finding)

    return replace(
        report,
        findings=[renewed(item) for item in report.findings],
        causes=[
            replace(cause, root=renewed(cause.root), symptoms=tuple(map(renewed, cause.symptoms)))
            for cause in report.causes
        ],
    )


def judge(
    paths: Sequence[Path], settings: Settings | None = None, *, progress: Progress | None = None
) -> tuple[Engine, ScanNotes]:
    """Runs the checks of saved tensors on some checkpoints."""
    chosen = [check for check in registry.chosen(settings or Settings()) if _of_scans(check)]
    engine, scanned = Engine(checks=chosen), ScanNotes()
    from headway.checkpoints.pickle_verdict import trusting

    with trusting((settings or Settings()).allow):
        engine.run(scanned.through(_records(paths, progress)))
    return engine, scanned


def _records(paths: Sequence[Path], progress: Progress | None) -> Iterator[Record]:
    """The records. One of several checkpoints that cannot be opened becomes a finding."""
    from headway.checkpoints.checkpoint_discovery import open_checkpoint
    from headway.checkpoints.checkpoint_records import records

    fine: list[Checkpoint] = []
    lost: list[tuple[int, Path, str]] = []
    for place, path in enumerate(paths):
        try:
            fine.append(open_checkpoint(path))
        except UnreadableInput as why:
            if len(paths) == 1:
                raise
            lost.append((place, path, str(why)))
    seq = 0
    for record in records(fine, progress=progress):
        seq = record.seq
        yield record
    for place, path, message in lost:
        yield EventRecord(0, seq + 1, place, CHECKPOINT, {"path": str(path)})
        data = {"path": str(path), "message": message}
        yield EventRecord(0, seq + 2, place, "unreadable-checkpoint", data)
        seq += 2


def checkpoints_at(path: Path, links: Mapping[Path, Path] = {}) -> list[Path]:
    """The checkpoints at a path. Raises UnreadableInput if there is none.

    `links`: those that were not followed, while it searches.
    """
    from headway.checkpoints.checkpoint_discovery import SUPPORTED, find_checkpoints, recognise
    from headway.checkpoints.checkpoint_info import describe_file
    from headway.checkpoints.folder_access import describe_left_out

    try:
        if not path.exists():
            raise UnreadableInput(f"{path} does not exist")
        if path.is_dir():
            os.scandir(path).close()
        elif not path.is_file():
            raise UnreadableInput(f"{path} is neither a file nor a folder")
        elif not path.stat().st_size:  # also what the system makes up, such as /proc/self/mem
            raise UnreadableInput(f"{path} is empty")
        else:
            open(path, "rb").close()  # a missing permission is not an unknown format
        if path.is_dir():
            # A folder may be a checkpoint and contain others: the last model and those of its run.
            if found := find_checkpoints(path):
                return by_run(found)
            why = describe_left_out(links) or f"Supported formats: {SUPPORTED}"
            raise UnreadableInput(f"{path} contains no checkpoint. {why}")
        if recognise(path) is not None:
            return [path]
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror or error}") from error
    what = describe_file(path)
    kind = "" if what is None else f" but {what}"
    raise UnreadableInput(f"{path} is not a checkpoint{kind}. Supported formats: {SUPPORTED}")


def by_run(paths: Sequence[Path]) -> list[Path]:
    """Groups checkpoints by run, the newest run last.

    Checkpoints in one folder are of one run. If only one folder has several, the order is kept.
    """
    folders = Counter(path.parent for path in paths)
    if sum(count > 1 for count in folders.values()) < 2:
        return list(paths)
    newest: dict[Path, float] = {}
    for path in paths:
        newest[path.parent] = max(newest.get(path.parent, 0.0), path.stat().st_mtime)
    return sorted(
        paths, key=lambda path: (round(newest[path.parent]), natural_order(str(path.parent)))
    )  # stable: by step within a run


def last_good(report: Report) -> Path | None:
    """The last clean checkpoint in the report of a scan."""
    clean = [item["path"] for item in report.sources if item.get("clean")]
    return Path(clean[-1]) if clean else None


def _of_scans(check: Check) -> bool:
    """Whether a check uses saved tensors; HD001 reports crashed checks."""
    needs = check.needs
    live_only = TensorRecord in needs.kinds and set(needs.roles) <= {"gradient", "input"}
    return (
        check.code == "HD001"
        or bool(needs.checkpoints)
        or (TensorRecord in needs.kinds and not live_only)
    )
