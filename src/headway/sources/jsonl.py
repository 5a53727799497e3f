"""JSON lines: one object per line, as many loggers and home-made ones write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.sources.log.json_rows import DEEPEST, JsonRows
from headway.sources.log.lines import blocks
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.steps import counting, unroll
from headway.sources.log.table import Table
from headway.sources.log.values import is_metric, number, spelled
from headway.sources.log.whole_json import BAD_JSON

FORMAT = "jsonl"
SAYS = "JSON lines"

LOOKED_AT = 50
"""Lines that decide."""


def recognise(sample: Sample) -> float:
    """Sure where most of the first lines are objects with numbers in them."""
    lines, rows = first_rows(sample)
    if not rows or 2 * len(rows) < len(lines) or any(_is_ours(row) for row in rows):
        return 0.0
    numbered = [row for row in rows if _has_number(row)]
    if not numbered:
        return 0.0
    names = {name for row in numbered for name in row}
    named = counting(names)[0] is not None
    if not named and (len(numbered) < 2 or not any(map(is_metric, names))):
        return 0.0  # one line of settings is no log
    return len(rows) / len(lines) * (0.9 if named else 0.6)


def read(path: Path) -> Log:
    """The whole of it."""
    log = Log(FORMAT, path, Table())
    rows = JsonRows(log)
    for lines in blocks(path):
        rows.add_lines(lines)
    rows.finish()
    finish(log)
    return log


def finish(log: Log) -> None:
    """What is said once all rows are there."""
    unroll(log)
    if torn := log.lines - log.used:
        log.notes.append(f"{torn} of {log.lines} lines have no number or could not be read")


def first_rows(sample: Sample) -> tuple[list[str], list[dict[str, Any]]]:
    """The first lines, and those of them that are objects."""
    if not sample.is_text:
        return [], []
    lines = [line.strip("\ufeff \t") for line in sample.lines[:LOOKED_AT]]
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
        or (isinstance(value, dict) and depth < DEEPEST and _has_number(value, depth + 1))
        for name, value in row.items()
    )


def _is_ours(row: dict[str, Any]) -> bool:
    """A record of a run directory of ours, which has a reader of its own."""
    return "seg" in row and "seq" in row
