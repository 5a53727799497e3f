"""JSON logs: one document, or one object per line."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.logs.console_events import TAIL, events_after_rows
from headway.logs.json_rows import BAD_JSON, MAX_NESTING, JsonRows, rows_of, whole_json
from headway.logs.log_file import HEAD, Sample, line_blocks
from headway.logs.log_table import MAX_COLUMNS, Log, Table
from headway.logs.readers import LogReader
from headway.logs.row_fields import (
    counting,
    is_metric,
    number,
    plain,
    plain_settings,
    spelled,
    unroll,
    whole,
)

# One JSON document: an array of rows, an object with such an array, or an object of columns.
#
#     [{"step": 1, "loss": 2.3}, …]     {"history": [{…}, …]}     {"loss": [2.3, …], "lr": […]}

JSON = "json"
JSON_LABEL = "JSON file of rows or columns"

MAX_DOCUMENT_DEPTH = 3
"""Levels of a document that are searched for rows."""

_SERIES = re.compile(
    r'"steps"\s*:\s*\[[\d,.\s]*(?:$|\].{0,200}?"(?:values|timestamps)")', re.DOTALL
)
_LIST = re.compile(r'"([^"\\]{1,100})"\s*:\s*\[\s*(?=[{\dN"-])')


def recognise_json(sample: Sample) -> float:
    """Fairly certain of rows or columns with names of metrics."""
    text = sample.text.lstrip("\ufeff \t\r\n")
    if not sample.is_text or text[:1] not in ("[", "{"):
        return 0.0
    if sample.size <= HEAD:
        try:
            return 0.75 if _found(json.loads(text)) is not None else 0.0
        except BAD_JSON:
            return 0.0
    if text[0] == "[":
        return 0.75 if _is_row(_first_object(text, 1)) else 0.0
    if _SERIES.search(text):
        return 0.7
    for match in _LIST.finditer(text):
        inside = _first_object(text, match.end())
        if _is_row(inside) or (inside is None and is_metric(match.group(1))):
            return 0.7
    return 0.0


def read_json(path: Path) -> Log:
    """Reads the whole file."""
    found = _found(whole := whole_json(path, JSON_LABEL))
    if found is None:
        raise UnreadableInput(f"{path} contains neither rows nor columns of numbers")
    log = Log(JSON, path, Table())
    if isinstance(whole, dict) and found is not whole:
        log.facts = plain_settings(whole)
    rows_of(log, found if isinstance(found, list) else _from_columns(log, found))
    unroll(log)
    return log


def read_numbered(paths: list[Path]) -> Log:
    """Reads a document of plain numbers per epoch: AllenNLP's `metrics_epoch_3.json`, …"""
    log = Log(JSON, paths[0], Table(), unit="epoch")
    rows = []
    for path in paths:
        whole = whole_json(path, JSON_LABEL)
        if isinstance(whole, dict):
            rows.append({"epoch": int(NUMBERED_NAME.match(path.name)[2]), **whole})  # type: ignore[index]
    rows_of(log, rows)
    return log


NUMBERED_NAME = re.compile(r"^(metrics\w{0,40}?)[_-]?(\d{1,7})\.json$")
"""Names of such documents."""


def _found(inside: Any, depth: int = 0) -> list[Any] | dict[str, Any] | None:
    """The rows or the columns, at any place in the document."""
    if (series := _series(inside)) is not None:
        return series
    if isinstance(inside, list):
        rows = [row for row in inside[:50] if isinstance(row, dict)]
        return inside if any(map(_is_row, rows)) else None
    if not isinstance(inside, dict) or depth > MAX_DOCUMENT_DEPTH:
        return None
    if any(is_metric(name) and _is_column(value) for name, value in inside.items()):
        return inside
    parts = [_found(value, depth + 1) for value in list(inside.values())[:100]]
    return max((part for part in parts if part is not None), key=len, default=None)


def _series(inside: Any) -> list[dict[str, Any]] | None:
    """The rows of a document with a list of steps for each metric, as Sacred writes it:
    `{"loss": {"steps": [0, 10], "values": [2.3, 2.1]}}`."""
    if not isinstance(inside, dict):
        return None
    found: dict[int, dict[str, Any]] = {}
    for name, one in list(inside.items())[:MAX_COLUMNS]:
        if isinstance(one, dict) and _is_column(one.get("steps")) and _is_column(one.get("values")):
            for step, value in zip(one["steps"], one["values"], strict=False):
                if (at := whole(step)) is not None:
                    found.setdefault(at, {"step": at})[name] = value
    return [found[step] for step in sorted(found)] or None


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    names = [name for name, value in row.items() if number(value) is not None]
    inner = [row for row in row.values() if isinstance(row, dict)]
    named = any(map(is_metric, names)) or any(map(is_metric, [n for one in inner for n in one]))
    return named or (counting(names)[0] is not None and len(names) > 1)


def _is_column(value: Any) -> bool:
    return isinstance(value, list) and any(number(one) is not None for one in value[:10])


def _from_columns(log: Log, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Turns columns into rows. A column of another length than the others is skipped."""
    lists = {name: value for name, value in columns.items() if _is_column(value)}
    lists = dict(list(lists.items())[:MAX_COLUMNS])
    lengths = [len(value) for name, value in lists.items() if plain(name) != "epoch"]
    length = max(set(lengths), key=lambda one: (lengths.count(one), one), default=0)
    other = sorted(name for name, value in lists.items() if len(value) != length)
    if other:
        log.notes.append(
            f"{len(other)} columns skipped: not {length} values like the others: "
            + ", ".join(other[:5])
        )
    kept = {name: value for name, value in lists.items() if name not in other}
    return [dict(zip(kept, values, strict=True)) for values in zip(*kept.values(), strict=True)]


def _first_object(text: str, at: int) -> Any:
    start = re.compile(r"\s*(?=\{)").match(text, at)
    if start is None:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start.end())[0]
    except BAD_JSON:
        return None


# JSON lines: one object per line.

JSONL = "jsonl"
JSONL_LABEL = "JSON lines"

_SAMPLE_LINES = 50
"""Lines that decide whether a file is a log."""


def recognise_jsonl(sample: Sample) -> float:
    """Certain if most of the first lines are objects with numbers."""
    lines, rows = first_rows(sample)
    if not rows or 2 * len(rows) < len(lines) or any(_is_ours(row) for row in rows):
        return 0.0
    numbered = [row for row in rows if _has_number(row)]
    if not numbered:
        return 0.0
    names = {name for row in numbered for name in row}
    named = counting(names)[0] is not None
    if not named and (len(numbered) < 2 or not any(map(is_metric, names))):
        return 0.0  # one line of settings is not a log
    return len(rows) / len(lines) * (0.9 if named else 0.6)


def read_jsonl(path: Path) -> Log:
    """Reads the whole file."""
    log = Log(JSONL, path, Table())
    rows = JsonRows(log)
    tail: deque[bytes] = deque(maxlen=TAIL)
    for lines in line_blocks(path):
        rows.add_lines(lines)
        tail.extend(lines)
    rows.finish()
    finish(log)
    last = [line.decode("utf-8", errors="replace") for line in tail]
    log.events += events_after_rows(last, _is_row_line, len(log.table))
    return log


def _is_row_line(line: str) -> bool:
    try:
        return line.startswith("{") and _is_row(json.loads(line))
    except BAD_JSON:
        return False


def finish(log: Log) -> None:
    """Call when all rows are added."""
    unroll(log)
    if skipped := log.lines - log.used:
        log.notes.append(f"{skipped} of {log.lines} lines skipped: no number, or damaged")


def first_rows(sample: Sample) -> tuple[list[str], list[dict[str, Any]]]:
    """The first lines, and the objects among them."""
    if not sample.is_text:
        return [], []
    lines = [line.strip("\ufeff \t") for line in sample.lines[:_SAMPLE_LINES]]
    rows = []
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            row = json.loads(line)
        except BAD_JSON:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return lines, rows


def _has_number(row: dict[str, Any], depth: int = 0) -> bool:
    return any(
        number(value) is not None
        or (isinstance(value, str) and spelled(name, value) is not None)
        or (isinstance(value, dict) and depth < MAX_NESTING and _has_number(value, depth + 1))
        for name, value in row.items()
    )


def _is_ours(row: dict[str, Any]) -> bool:
    """Whether it is a record of a headway run directory, which `rundir` reads."""
    return "seg" in row and "seq" in row


READERS = (
    LogReader(JSON, JSON_LABEL, recognise_json, read_json),
    LogReader(JSONL, JSONL_LABEL, recognise_jsonl, read_jsonl),
)
