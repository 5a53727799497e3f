"""MLflow: `mlflow.db` (SQLite, the newest run in it), and the older store of one file per metric.

In SQLite NaN is 0 with a flag beside it, and infinity the largest number there is; in the files
lines are `time value step`.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.logs.formats import trackio
from headway.logs.formats.hf_trainer import describe_trainer, is_trainer
from headway.logs.log_file import Sample, line_blocks, sample
from headway.logs.log_table import MAX_COLUMNS, Log, LogEvent, Table, add_points, number_rows
from headway.logs.readers import LogReader
from headway.logs.row_fields import plain_settings, whole
from headway.logs.sqlite_file import MAGIC, SqliteFile, open_sqlite

FORMAT = "mlflow"
LABEL = "MLflow store"

LARGEST = 1.7976931348623157e308
MOST_PARAMS = 1000
_MARKS = (b"is_nan", b"latest_metrics", b"alembic_version")
_LINE = re.compile(r"\d{9,16} \S+ -?\d+")
_MACHINE = "system/"
"""Metrics of the machine: they count moments, not steps."""


@dataclass(slots=True)
class _Points:
    """Points in the order they were written; a run begun anew begins a part of its own."""

    parts: list[dict[str, tuple[array[int], array[float]]]] = field(default_factory=list)
    furthest: dict[str, int] = field(default_factory=dict)
    seen: dict[str, set[int]] = field(default_factory=dict)
    """The steps of those names that ever fell back."""

    def add(self, name: str, step: int, value: float) -> None:
        furthest = self.furthest.get(name, step)
        if not self.parts or (step < furthest and self._was_there(name, step)):
            self.parts.append({})
            self.furthest.clear()
            self.seen.clear()
            furthest = step
        part = self.parts[-1]
        if name not in part:
            if len(part) >= MAX_COLUMNS:
                return
            part[name] = array("q"), array("d")
        if name in self.seen:
            self.seen[name].add(step)
        self.furthest[name] = max(step, furthest)
        part[name][0].append(step)
        part[name][1].append(value)

    def _was_there(self, name: str, step: int) -> bool:
        """Some writers are a little out of order; a step that was there and comes again is not."""
        if name not in self.seen:
            self.seen[name] = set(self.parts[-1][name][0])
        return step in self.seen[name]

    def into(self, log: Log) -> None:
        """All of it as rows."""
        for part in self.parts:
            begin = len(log.table)
            add_points(log.table, ((name, *points) for name, points in part.items()))
            if begin:
                step = log.table.steps[begin]
                log.events.append(LogEvent(begin, "restart", {"step": step}))
                log.notes.append(f"started again at step {step}")
        number_rows(log)


def recognise(sample: Sample) -> float:
    """Sure of its tables; not so of any SQLite file, whose tables may lie anywhere in it."""
    if sample.head.startswith(MAGIC):
        return 0.9 if any(mark in sample.head for mark in _MARKS) else 0.3
    if not sample.is_text or not sample.lines:
        return 0.0
    return 0.4 if all(_LINE.fullmatch(line.strip()) for line in sample.lines) else 0.0


def read(path: Path) -> Log:
    """The newest run of a database, or one metric's file."""
    if not sample(path).head.startswith(MAGIC):
        return _read_files(path, {path.name: path})
    with open_sqlite(path) as store:
        if trackio.fits(store):
            return trackio.read_store(path, store)
        if not store.has("metrics", "key", "value", "run_uuid", "step"):
            raise UnreadableInput(
                f"{path} is an SQLite file without metrics of MLflow or trackio in it"
            )
        return _read_store(path, store)


def read_run(folder: Path) -> Log:
    """A run of the file store: a folder with `metrics/` and `params/` in it."""
    files = _files(folder / "metrics")
    if not files:
        raise UnreadableInput(f"{folder} is no run of MLflow: there is no file in its metrics/")
    log = _read_files(folder, files)
    found = {}
    for name, path in list(_files(folder / "params").items())[:MOST_PARAMS]:
        try:
            with open(path, "rb") as file:
                found[name] = _setting(file.read(501).decode("utf-8", errors="replace"))
        except OSError:
            continue
    log.facts.update(plain_settings(found))
    _finish(log)
    return log


def _finish(log: Log) -> None:
    if is_trainer(log):
        describe_trainer(log)


# The database


def _read_store(path: Path, store: SqliteFile) -> Log:
    log = Log(FORMAT, path, Table(), notes=store.notes)
    run, others = _newest(store)
    if others:
        log.notes.append(f"{len(others)} other runs in it are not read: {', '.join(others[:5])}")
    flagged = store.has("metrics", "is_nan")
    columns = ["key", "step", "value", *(["is_nan"] if flagged else [])]
    points = _Points()
    for key, step, value, *flag in store.rows("metrics", columns, "run_uuid", run):
        log.lines += 1
        counted = whole(step)
        if not isinstance(key, str) or counted is None or key.startswith(_MACHINE):
            continue
        number = math.nan if flag and flag[0] else _value(value)
        if number is not None:
            points.add(key, counted, number)
            log.used += 1
    points.into(log)
    found: dict[str, Any] = {}
    for key, value in store.rows("params", ["key", "value"], "run_uuid", run):
        if isinstance(key, str) and isinstance(value, str) and len(found) < MOST_PARAMS:
            found[key] = _setting(value)
    log.facts.update(plain_settings(found))
    _finish(log)
    return log


def _newest(store: SqliteFile) -> tuple[Any, list[str]]:
    """The run with metrics that began last, and the names of the others that have some."""
    begun: dict[Any, int] = {}
    for at, (run,) in enumerate(store.rows("metrics", ["run_uuid"])):
        if run not in begun and len(begun) < 100_000:
            begun[run] = at
    if not begun:
        return None, []
    known: dict[Any, tuple[float, str]] = {}
    for run, name, start in store.rows("runs", ["run_uuid", "name", "start_time"]):
        if run in begun:
            known[run] = (whole(start) or 0, str(name or run)[:100])
    newest = max(begun, key=lambda run: (known.get(run, (0, ""))[0], begun[run]))
    return newest, [known.get(run, (0, str(run)[:100]))[1] for run in begun if run != newest]


def _value(value: Any) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    if abs(value) >= LARGEST:
        return math.copysign(math.inf, value)
    return float(value)


# The files


def _files(folder: Path) -> dict[str, Path]:
    """By the metric's name: a slash in it is a folder."""
    try:
        found = sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError:
        return {}
    return {path.relative_to(folder).as_posix(): path for path in found[:MAX_COLUMNS]}


def _read_files(path: Path, files: dict[str, Path]) -> Log:
    log = Log(FORMAT, path, Table())
    rows: list[tuple[int, int, str, int, float]] = []
    for name, file in files.items():
        if not name.startswith(_MACHINE):
            rows += _lines(log, name, file)
    points = _Points()
    for _, _, name, step, value in sorted(rows, key=lambda row: row[:2]):
        points.add(name, step, value)
    points.into(log)
    if torn := log.lines - log.used:
        log.notes.append(f"{torn} of {log.lines} lines could not be read")
    return log


def _lines(log: Log, name: str, path: Path) -> Iterable[tuple[int, int, str, int, float]]:
    for lines in line_blocks(path):
        for line in lines:
            if not line or line.isspace():
                continue
            log.lines += 1
            try:
                when, value, step = line.split()
                counted = whole(int(step)) if len(step) < 20 else None
                if counted is None or len(when) > 20:
                    continue
                found = (int(when), log.lines, name, counted, float(value))
            except ValueError:
                continue
            log.used += 1
            yield found


def _setting(text: str) -> Any:
    """Settings are kept as text, whatever they were."""
    text = text.strip()
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text) if len(text) <= 40 else text
        except ValueError:
            continue
    return text


READERS = (LogReader(FORMAT, LABEL, recognise, read),)
