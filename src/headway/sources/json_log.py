"""One JSON text that holds a log: an array of rows, an object with one, or an object of columns.

[{"step": 1, "loss": 2.3}, …]     {"history": [{…}, …]}     {"loss": [2.3, …], "lr": […]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.sources.log.json_rows import rows_of
from headway.sources.log.log import Log
from headway.sources.log.sample import HEAD, Sample
from headway.sources.log.steps import counting, plain, unroll
from headway.sources.log.table import MOST_COLUMNS, Table
from headway.sources.log.values import is_metric, number, plain_settings
from headway.sources.log.whole_json import BAD_JSON, whole_json

FORMAT = "json"
SAYS = "JSON file of rows or columns"

DEEPEST = 3
"""How far inside the rows may be."""

_LIST = re.compile(r'"([^"\\]{1,100})"\s*:\s*\[\s*(?=[{\dN"-])')


def recognise(sample: Sample) -> float:
    """Rather sure where there are rows or columns with names that trainings log."""
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
    for match in _LIST.finditer(text):
        inside = _first_object(text, match.end())
        if _is_row(inside) or (inside is None and is_metric(match.group(1))):
            return 0.7
    return 0.0


def read(path: Path) -> Log:
    """The whole of it."""
    found = _found(whole := whole_json(path, SAYS))
    if found is None:
        raise UnreadableInput(f"{path} has neither rows nor columns of numbers in it")
    log = Log(FORMAT, path, Table())
    if isinstance(whole, dict) and found is not whole:
        log.facts = plain_settings(whole)
    rows_of(log, found if isinstance(found, list) else _from_columns(log, found))
    unroll(log)
    return log


def _found(inside: Any, depth: int = 0) -> list[Any] | dict[str, Any] | None:
    """The rows or the columns, wherever they lie."""
    if isinstance(inside, list):
        rows = [row for row in inside[:50] if isinstance(row, dict)]
        return inside if any(map(_is_row, rows)) else None
    if not isinstance(inside, dict) or depth > DEEPEST:
        return None
    if any(is_metric(name) and _is_column(value) for name, value in inside.items()):
        return inside
    parts = [_found(value, depth + 1) for value in list(inside.values())[:100]]
    return max((part for part in parts if part is not None), key=len, default=None)


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
    """Columns as rows. Those of another length than the rest cannot be placed."""
    lists = {name: value for name, value in columns.items() if _is_column(value)}
    lists = dict(list(lists.items())[:MOST_COLUMNS])
    lengths = [len(value) for name, value in lists.items() if plain(name) != "epoch"]
    length = max(set(lengths), key=lambda one: (lengths.count(one), one), default=0)
    other = sorted(name for name, value in lists.items() if len(value) != length)
    if other:
        log.notes.append(
            f"{len(other)} columns have not {length} values like the others: {', '.join(other[:5])}"
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
