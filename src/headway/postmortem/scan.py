"""Scanning checkpoints: every tensor, every moment, without torch and without running a byte."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import registry
from headway.config import Settings
from headway.core.check import Check
from headway.core.findings import Finding
from headway.core.records import EventRecord, Record, TensorRecord
from headway.core.saved import CHECKPOINT
from headway.engine import Engine
from headway.errors import UnreadableInput
from headway.postmortem.order import natural
from headway.postmortem.scanned import Watched
from headway.report import Report

if TYPE_CHECKING:
    from headway.checkpoints.model import Checkpoint

Progress = Callable[..., Any]


def scan(
    path: str | Path | Sequence[str | Path],
    *,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Report:
    """Look through checkpoints, or all those of a folder, and say what is wrong with them.

    Does not import torch, and runs nothing that is in the files. Raises `UnreadableInput` where
    there is no checkpoint.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    found = [one for item in paths for one in checkpoints_at(Path(item))]
    return look_through(list(dict.fromkeys(found)), settings, progress=progress)


def look_through(
    paths: Sequence[Path], settings: Settings | None = None, *, progress: Progress | None = None
) -> Report:
    """The report on these checkpoints, in this order."""
    engine, watched = judge(paths, settings, progress=progress)
    report = stepless(Report.from_engine(engine, command="scan", notes=watched.notes()), watched)
    named = replace(report, sources=[item.to_dict() for item in watched.checkpoints])
    if len(watched.checkpoints) < 2:
        return named
    from headway.postmortem.last_good import Looked, advised

    looked = Looked(paths, settings or Settings(), engine, watched, whole=True)
    return advised(named, looked, unit=watched.checkpoints[0].counts)


def stepless(report: Report, watched: Watched) -> Report:
    """The report without steps for checkpoints that tell none: records have their place for it."""
    unknown = {item.path for item in watched.checkpoints if item.step is None}
    alone = len(unknown) == len(watched.checkpoints)
    told: dict[int, Finding] = {}
    for finding in report.findings:
        path = finding.evidence.get("path")
        if alone or path in unknown:
            evidence = {key: v for key, v in finding.evidence.items() if key != "last_step"}
            told[id(finding)] = replace(finding, step=None, evidence=evidence)

    def renewed(finding: Finding) -> Finding:
        return told.get(id(finding), finding)

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
) -> tuple[Engine, Watched]:
    """Feed the tensors of some checkpoints to the checks that look at such."""
    chosen = [check for check in registry.chosen(settings or Settings()) if _of_scans(check)]
    engine, watched = Engine(checks=chosen), Watched()
    engine.run(watched.through(_records(paths, progress)))
    return engine, watched


def _records(paths: Sequence[Path], progress: Progress | None) -> Iterator[Record]:
    """The stream. A checkpoint of several that cannot be opened is a finding, not the end."""
    from headway.checkpoints import open_checkpoint
    from headway.checkpoints.records import records

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
    for place, path, said in lost:
        yield EventRecord(0, seq + 1, place, CHECKPOINT, {"path": str(path)})
        data = {"path": str(path), "message": said}
        yield EventRecord(0, seq + 2, place, "unreadable-checkpoint", data)
        seq += 2


def checkpoints_at(path: Path) -> list[Path]:
    """The checkpoints a path stands for. Raises UnreadableInput where there is none."""
    from headway.checkpoints import SUPPORTED, find_checkpoints, recognise
    from headway.checkpoints.mistaken import what_it_is

    try:
        if not path.exists():
            raise UnreadableInput(f"there is nothing at {path}")
        if path.is_dir():
            os.scandir(path).close()
        elif not path.is_file():
            raise UnreadableInput(f"{path} is neither a file nor a folder")
        else:
            open(path, "rb").close()  # that it may not be read is not that it is unknown
        if path.is_dir():
            # A folder may be a checkpoint and hold others: the last model beside those of its run.
            if found := find_checkpoints(path):
                return by_run(found)
            raise UnreadableInput(f"{path} holds no checkpoint; headway scans {SUPPORTED}")
        if recognise(path) is not None:
            return [path]
        if not path.stat().st_size:
            raise UnreadableInput(f"{path} is empty")
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror or error}") from error
    what = what_it_is(path)
    said = "" if what is None else f", it is {what}"
    raise UnreadableInput(f"{path} is not a checkpoint{said}; headway scans {SUPPORTED}")


def by_run(paths: Sequence[Path]) -> list[Path]:
    """The checkpoints of several runs one run after the other, the newest run last.

    Those in one folder are of one run. Where only one folder holds several, the order stays.
    """
    folders = Counter(path.parent for path in paths)
    if sum(count > 1 for count in folders.values()) < 2:
        return list(paths)
    newest: dict[Path, float] = {}
    for path in paths:
        newest[path.parent] = max(newest.get(path.parent, 0.0), path.stat().st_mtime)
    return sorted(
        paths, key=lambda path: (round(newest[path.parent]), natural(str(path.parent)))
    )  # stable: by step within a run


def last_good(report: Report) -> Path | None:
    """The path of the last clean checkpoint of a scan."""
    clean = [item["path"] for item in report.sources if item.get("clean")]
    return Path(clean[-1]) if clean else None


def _of_scans(check: Check) -> bool:
    """Whether a check has anything to say about saved tensors; the crash of one has, too."""
    needs = check.needs
    live_only = TensorRecord in needs.kinds and set(needs.roles) <= {"gradient", "input"}
    return (
        check.code == "HD001"
        or bool(needs.checkpoints)
        or (TensorRecord in needs.kinds and not live_only)
    )
