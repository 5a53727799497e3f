"""trackio's `<project>.db`: a row of JSON per step, of several runs; the newest is read."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.logs.formats.hf_trainer import count_trainer_steps, describe_trainer, is_trainer
from headway.logs.json_rows import BAD_JSON, rows_of
from headway.logs.log_file import Sample
from headway.logs.log_table import Log, LogEvent, Table
from headway.logs.readers import LogReader
from headway.logs.row_fields import plain_settings, whole
from headway.logs.sqlite_file import MAGIC, SqliteFile, open_sqlite

FORMAT = "trackio"
LABEL = "trackio database"

MOST_ALERTS = 1000
STEP = "_step"
"""The step's name in a row, where no metric has it."""


def recognise(sample: Sample) -> float:
    """Sure of SQLite whose first pages have its tables."""
    if not sample.head.startswith(MAGIC) or b"run_name" not in sample.head:
        return 0.0
    return 1.0 if b"CREATE TABLE metrics" in sample.head else 0.6


def fits(store: SqliteFile) -> bool:
    """Whether its tables are trackio's."""
    return store.has("metrics", "run_name", "step", "metrics")


def read(path: Path) -> Log:
    """The newest run."""
    with open_sqlite(path) as store:
        if not fits(store):
            raise UnreadableInput(
                f"{path} is no {LABEL}: it has no table `metrics` with run_name, step and metrics"
            )
        return read_store(path, store)


def read_store(path: Path, store: SqliteFile) -> Log:
    """The newest run of a file that is open."""
    log = Log(FORMAT, path, Table(), notes=store.notes)
    key = "run_id" if store.has("metrics", "run_id") else "run_name"
    run, others = _newest(store, key)
    if others:
        log.notes.append(f"{len(others)} other runs in it are not read: {', '.join(others[:5])}")
    rows_of(log, _rows(store, key, run))
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


def _newest(store: SqliteFile, key: str) -> tuple[Any, list[str]]:
    """The run whose first row came last, and the names of the others."""
    begun: dict[Any, str] = {}
    for run, name in store.rows("metrics", [key, "run_name"]):
        if run not in begun and len(begun) < 100_000:
            begun[run] = str(name)[:100]
    if not begun:
        return None, []
    *others, newest = begun
    return newest, [begun[run] for run in others]


def _rows(store: SqliteFile, key: str, run: Any) -> Iterator[dict[str, Any]]:
    for step, metrics in store.rows("metrics", ["step", "metrics"], key, run):
        row = _parsed(metrics)
        if not isinstance(row, dict):
            yield {}
            continue
        row.pop(STEP, None)
        yield {STEP: step, **row}


def _add_alerts(log: Log, store: SqliteFile, key: str, run: Any) -> None:
    steps = list(log.table.steps)
    rising = steps == sorted(steps)
    columns = ["step", "title", "text"]
    for at, (step, title, text) in enumerate(store.rows("alerts", columns, key, run)):
        if at >= MOST_ALERTS:
            break
        counted = whole(step)
        row = bisect_right(steps, counted) if rising and counted is not None else len(steps)
        said = ": ".join(str(part)[:500] for part in (title, text) if part)
        log.events.append(LogEvent(row, "note", {"text": said}))


def _parsed(text: Any) -> Any:
    if not isinstance(text, (str, bytes)):
        return None
    try:
        return json.loads(text)
    except BAD_JSON:
        return None


READERS = (LogReader(FORMAT, LABEL, recognise, read),)
