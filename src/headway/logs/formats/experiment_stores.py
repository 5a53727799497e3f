"""Stores of several runs: MLflow (`mlflow.db`, or a file per metric) and trackio."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.logs.formats.hf_trainer import count_trainer_steps, describe_trainer, is_trainer
from headway.logs.json_rows import BAD_JSON, rows_of
from headway.logs.log_file import Sample, line_blocks, sample
from headway.logs.log_table import MAX_COLUMNS, Log, LogEvent, LogPoints, Table
from headway.logs.readers import LogReader
from headway.logs.row_fields import plain_settings, whole
from headway.logs.sqlite_file import MAGIC, SqliteFile, open_sqlite

MLFLOW, MLFLOW_LABEL = "mlflow", "MLflow store"
TRACKIO, TRACKIO_LABEL = "trackio", "trackio database"
_MAX_RUNS = 100_000
MAX_READ = 200
"""Runs of one database that are read: the newest ones."""


# Several runs in one database.


def _runs(store: SqliteFile, key: str, name: str) -> dict[Any, str]:
    """The names of the runs that have metrics, in the order of their first one."""
    found: dict[Any, str] = {}
    for run, own in store.rows("metrics", [key, name]):
        if run not in found and len(found) < _MAX_RUNS:
            found[run] = str(own)[:100]
    return found


def _read_runs(path: Path, *, newest: bool = False) -> list[Log]:
    """Reads the runs of a database, or only the newest; the newest is last."""
    with open_sqlite(path) as store:
        if _is_trackio(store):
            one, names = _read_trackio, _trackio_runs(store)
        elif store.has("metrics", "key", "value", "run_uuid", "step"):
            one, names = _read_mlflow, _mlflow_runs(store)
        else:
            raise UnreadableInput(f"{path} is an SQLite file without MLflow or trackio metrics")
        runs = list(names or {None: ""})
        kept = runs[-1:] if newest else runs[-MAX_READ:]
        logs = [one(path, store, run) for run in kept]
    for log, run in zip(logs, kept, strict=True):
        log.run = names[run] if len(names) > 1 else ""
    if left := [names[run] for run in runs[: -len(kept)]]:
        logs[-1].notes.append(f"{len(left)} other runs in it were not read: {', '.join(left[:5])}")
    return logs


# MLflow. In the database NaN is 0 with a flag, and Inf the largest float64; lines of the files are
# `time value step`.

MLFLOW_INF = 1.7976931348623157e308
_MAX_PARAMS = 1000
_MARKS = (b"is_nan", b"latest_metrics", b"alembic_version")
_LINE = re.compile(r"\d{9,16} \S+ -?\d+")
_STATUS = re.compile(r"^status:\s{0,4}(\w{1,20})", re.MULTILINE)
_BAD_ENDS = {
    "FAILED": ("exception", "MLflow recorded that the run failed"),
    "KILLED": ("interrupted-in-log", "MLflow recorded that the run was stopped"),
}
_STATUS_NUMBERS = {"4": "FAILED", "5": "KILLED"}
"""The file store has the number of a status."""
_MACHINE = "system/"
"""Metrics of the machine: their step counts samples."""


@dataclass(slots=True)
class _MachinePoints:
    """Metrics of the machine. Their step counts samples, so their time gives the training step."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    """(time, step) of the metrics of the training."""
    samples: list[tuple[str, int, float]] = field(default_factory=list)

    def note_step(self, when: int, step: int) -> None:
        """The training was at this step."""
        self.steps.append((when, step))

    def add(self, name: str, when: int, value: float) -> None:
        """Adds a sample; only memory is of use to a check."""
        if "memory" in name:
            self.samples.append((name, when, value))

    def into(self, points: LogPoints, log: Log) -> None:
        """Adds the samples to the points, each at the last step before it."""
        self.steps.sort()
        times = [when for when, _ in self.steps]
        latest: dict[tuple[str, int], float] = {}
        counted = {name.rpartition("_")[0] for name, _, _ in self.samples if "percent" not in name}
        for name, when, value in self.samples:
            if "percent" in name and name.rpartition("_")[0] in counted:
                continue  # the same memory is there in megabytes
            at = bisect_right(times, when) - 1
            if times and times[0] < times[-1]:
                latest[name, self.steps[max(at, 0)][1]] = value
        for (name, step), value in sorted(latest.items(), key=lambda item: item[0][1]):
            points.add(name, step, value)
            log.used += 1


def recognise_mlflow(sample: Sample) -> float:
    """Certain of its tables; less so of other SQLite files, whose tables may be anywhere in it."""
    if sample.head.startswith(MAGIC):
        return 0.9 if any(mark in sample.head for mark in _MARKS) else 0.3
    if not sample.is_text or not sample.lines:
        return 0.0
    return 0.4 if all(_LINE.fullmatch(line.strip()) for line in sample.lines) else 0.0


def read_mlflow(path: Path) -> Log:
    """Reads the newest run of a database, or the file of one metric."""
    if not sample(path).head.startswith(MAGIC):
        return _read_files(path, {path.name: path})
    return _read_runs(path, newest=True)[-1]


def _read_each(path: Path) -> list[Log]:
    return _read_runs(path) if sample(path).head.startswith(MAGIC) else [read_mlflow(path)]


def read_mlflow_run(folder: Path) -> Log:
    """Reads a run of the file store: a folder with `metrics/` and `params/`."""
    files = _files(folder / "metrics")
    if not files:
        raise UnreadableInput(f"{folder} is not a run of MLflow: its metrics/ has no files")
    log = _read_files(folder, files)
    found = {}
    for name, path in list(_files(folder / "params").items())[:_MAX_PARAMS]:
        try:
            with open(path, "rb") as file:
                found[name] = _setting(file.read(501).decode("utf-8", errors="replace"))
        except OSError:
            continue
    log.facts.update(plain_settings(found))
    _add_status(log, _status_in(folder / "meta.yaml"))
    if is_trainer(log):
        describe_trainer(log)
    return log


def _status_in(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            found = _STATUS.search(file.read(1 << 16).decode("utf-8", errors="replace"))
    except OSError:
        return ""
    return _STATUS_NUMBERS.get(found[1], found[1]) if found else ""


def _add_status(log: Log, status: str) -> None:
    """The end of a run that did not finish, by its status in the store."""
    if status in _BAD_ENDS:
        kind, text = _BAD_ENDS[status]
        log.events.append(LogEvent(len(log.table), kind, {"error": text, "signal": None}))


def _read_mlflow(path: Path, store: SqliteFile, run: Any) -> Log:
    log = Log(MLFLOW, path, Table(), notes=list(store.notes))
    timed = store.has("metrics", "timestamp")
    flagged = store.has("metrics", "is_nan")
    columns = ["key", "step", "value", *(["timestamp"] if timed else [])]
    columns += ["is_nan"] if flagged else []
    points, machine = LogPoints(), _MachinePoints()
    for key, step, value, *more in store.rows("metrics", columns, "run_uuid", run):
        log.lines += 1
        counted = whole(step)
        if not isinstance(key, str) or counted is None:
            continue
        number = math.nan if flagged and more[-1] else _value(value)
        when = (whole(more[0]) or 0) if timed else 0
        if number is None:
            continue
        if key.startswith(_MACHINE):
            machine.add(key, when, number)
            continue
        points.add(key, counted, number)
        machine.note_step(when, counted)
        log.used += 1
    machine.into(points, log)
    points.into(log)
    found: dict[str, Any] = {}
    for key, value in store.rows("params", ["key", "value"], "run_uuid", run):
        if isinstance(key, str) and isinstance(value, str) and len(found) < _MAX_PARAMS:
            found[key] = _setting(value)
    log.facts.update(plain_settings(found))
    for (status,) in store.rows("runs", ["status"], "run_uuid", run):
        _add_status(log, str(status))
    if is_trainer(log):
        describe_trainer(log)
    return log


def _mlflow_runs(store: SqliteFile) -> dict[Any, str]:
    """The names of the runs by id, the newest last."""
    names = _runs(store, "run_uuid", "run_uuid")
    started = dict.fromkeys(names, 0)
    for run, name, start in store.rows("runs", ["run_uuid", "name", "start_time"]):
        if run in names:
            started[run], names[run] = whole(start) or 0, str(name or run)[:100]
    # Sorting is stable: of two with the same start time, the one whose first metric is later.
    return {run: names[run] for run in sorted(started, key=lambda run: started[run])}


def _value(value: Any) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    if abs(value) >= MLFLOW_INF:
        return math.copysign(math.inf, value)
    return float(value)


def _files(folder: Path) -> dict[str, Path]:
    """Files by the name of the metric, which may contain slashes."""
    try:
        found = sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError:
        return {}
    return {path.relative_to(folder).as_posix(): path for path in found[:MAX_COLUMNS]}


def _read_files(path: Path, files: dict[str, Path]) -> Log:
    log = Log(MLFLOW, path, Table())
    rows: list[tuple[int, int, str, int, float]] = []
    machine = _MachinePoints()
    for name, file in files.items():
        if name.startswith(_MACHINE):
            for when, _, _, _, value in _lines(Log(MLFLOW, path, Table()), name, file):
                machine.add(name, when, value)
        else:
            rows += _lines(log, name, file)
    points = LogPoints()
    for when, _, name, step, value in sorted(rows, key=lambda row: row[:2]):
        points.add(name, step, value)
        machine.note_step(when, step)
    if skipped := log.lines - log.used:
        log.notes.append(f"{skipped} of {log.lines} lines could not be read")
    machine.into(points, log)
    points.into(log)
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
    """A setting from its text: MLflow stores all of them as text."""
    text = text.strip()
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text) if len(text) <= 40 else text
        except ValueError:
            continue
    return text


# trackio: a row of JSON per step.

_MAX_ALERTS = 1000
_STEP = "_step"
"""Name of the step in a row; no metric has it."""


def recognise_trackio(sample: Sample) -> float:
    """Certain of an SQLite file whose first pages have its tables."""
    if not sample.head.startswith(MAGIC) or b"run_name" not in sample.head:
        return 0.0
    return 1.0 if b"CREATE TABLE metrics" in sample.head else 0.6


def read_trackio(path: Path) -> Log:
    """Reads the newest run."""
    with open_sqlite(path) as store:
        if not _is_trackio(store):
            columns = "run_name, step and metrics"
            raise UnreadableInput(
                f"{path} is not a {TRACKIO_LABEL}: it has no table `metrics` with {columns}"
            )
    return _read_runs(path, newest=True)[-1]


def _is_trackio(store: SqliteFile) -> bool:
    return store.has("metrics", "run_name", "step", "metrics")


def _trackio_key(store: SqliteFile) -> str:
    return "run_id" if store.has("metrics", "run_id") else "run_name"


def _read_trackio(path: Path, store: SqliteFile, run: Any) -> Log:
    log = Log(TRACKIO, path, Table(), notes=list(store.notes))
    key = _trackio_key(store)
    rows_of(log, _trackio_rows(store, key, run))
    for (config,) in store.rows("configs", ["config"], key, run):
        found = _parsed(config)
        if isinstance(found, dict):
            named = {name: one for name, one in found.items() if not name.startswith("_")}
            log.facts.update(plain_settings(named))
    _add_alerts(log, store, key, run)
    if is_trainer(log):
        count_trainer_steps(log, "train/global_step")
        describe_trainer(log, "train/")
    return log


def _trackio_runs(store: SqliteFile) -> dict[Any, str]:
    """The names of the runs by their key, in the order of their first row."""
    return _runs(store, _trackio_key(store), "run_name")


def _trackio_rows(store: SqliteFile, key: str, run: Any) -> Iterator[dict[str, Any]]:
    for step, metrics in store.rows("metrics", ["step", "metrics"], key, run):
        row = _parsed(metrics)
        if not isinstance(row, dict):
            yield {}
            continue
        row.pop(_STEP, None)
        yield {_STEP: step, **row}


def _add_alerts(log: Log, store: SqliteFile, key: str, run: Any) -> None:
    steps = list(log.table.steps)
    rising = steps == sorted(steps)
    columns = ["step", "title", "text"]
    for at, (step, title, text) in enumerate(store.rows("alerts", columns, key, run)):
        if at >= _MAX_ALERTS:
            break
        counted = whole(step)
        row = bisect_right(steps, counted) if rising and counted is not None else len(steps)
        message = ": ".join(str(part)[:500] for part in (title, text) if part)
        log.events.append(LogEvent(row, "note", {"text": message}))


def _parsed(text: Any) -> Any:
    if not isinstance(text, (str, bytes)):
        return None
    try:
        return json.loads(text)
    except BAD_JSON:
        return None


READERS = (
    LogReader(MLFLOW, MLFLOW_LABEL, recognise_mlflow, read_mlflow, _read_each),
    LogReader(TRACKIO, TRACKIO_LABEL, recognise_trackio, read_trackio, _read_each),
)
