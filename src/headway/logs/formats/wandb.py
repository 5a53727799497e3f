"""Offline file of Weights & Biases, `run-*.wandb`.

A header of seven bytes, then blocks of 32 KiB with pieces of records (checksum, length, kind), as
in the log of LevelDB. Each record is a message: `history` has the rows, `run` and `config` the
settings.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.logs.formats.hf_trainer import count_trainer_steps, describe_trainer, is_trainer
from headway.logs.json_rows import BAD_JSON, rows_of
from headway.logs.log_file import Sample
from headway.logs.log_table import Log, LogEvent, Table
from headway.logs.protobuf_wire import BadProto, fields, parts, signed, texts
from headway.logs.readers import LogReader
from headway.logs.row_fields import plain_settings

FORMAT = "wandb"
LABEL = "Weights & Biases .wandb file"

MAGIC = b":W&B"
HEADER = 7
BLOCK = 1 << 15
MAX_RECORD_BYTES = 1 << 24
"""A longer record is skipped."""
_MAX_ALERTS = 1000

_PIECE = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _CONFIG, _ALERT, _RUN, _EXIT = 2, 5, 10, 17, 18
_CTRL_C = 255
"""The exit code that the client records for an interrupt."""
_NESTED_DEPTH = 8
_OWN = ("_runtime", "_timestamp", "_wandb")
"""Columns of W&B itself, beside `_step`."""


def recognise(sample: Sample) -> float:
    """Certain by the first four bytes."""
    return 1.0 if sample.head.startswith(MAGIC) else 0.0


def read(path: Path) -> Log:
    """Reads the whole file."""
    log = Log(FORMAT, path, Table())
    rows_of(log, _rows(log, path))
    if "exit_code" not in log.facts and not log.notes:
        log.notes.append("the file records no end: the run was killed, or is still running")
    if is_trainer(log):
        count_trainer_steps(log, "train/global_step")
        describe_trainer(log, "train/")
    return log


def _rows(log: Log, path: Path) -> Iterator[dict[str, Any]]:
    rows = 0
    for record in _records(path, log):
        try:
            found = [(n, part) for n, part in fields(record) if isinstance(part, bytes)]
            for number, part in found:
                if number == _HISTORY:
                    row = _row(part)
                    if row:
                        rows += 1
                        yield row
                elif number == _RUN:
                    for config in parts(part, 4):
                        log.facts.update(_settings(config))
                elif number == _CONFIG:
                    log.facts.update(_settings(part))
                elif number == _ALERT and len(log.events) < _MAX_ALERTS:
                    log.events.append(LogEvent(rows, "note", _alert(part)))
                elif number == _EXIT:
                    code = next(
                        (signed(c) for n, c in fields(part) if n == 1 and type(c) is int), 0
                    )
                    log.facts["exit_code"] = code
                    log.events += _ending(rows, code)
        except BadProto:
            log.lines += 1


def _ending(rows: int, code: int) -> list[LogEvent]:
    """The end of a run that W&B did not record as finished."""
    if code == 0:
        return []
    if code == _CTRL_C:
        return [LogEvent(rows, "interrupted-in-log", {"error": "Ctrl-C", "signal": 2})]
    text = f"W&B recorded that the run ended with exit code {code}"
    return [LogEvent(rows, "exception", {"error": text, "aside": True})]


def _row(history: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for number, part in fields(history):
        if number == 2 and isinstance(part, bytes):
            for inner, step in fields(part):
                if inner == 1 and isinstance(step, int):
                    row.setdefault("_step", signed(step))
        elif number == 1 and isinstance(part, bytes):
            name, value = _item(part)
            if name and name not in _OWN:
                row[name] = value
    return row


def _item(item: bytes) -> tuple[str, Any]:
    """A name and its JSON value; nested names are joined with `/`."""
    key, nested, value = "", [], None
    for number, part in fields(item):
        if not isinstance(part, bytes):
            continue
        if number == 1:
            key = part.decode("utf-8", errors="replace")
        elif number == 2:
            nested.append(part.decode("utf-8", errors="replace"))
        elif number == 16:
            try:
                value = json.loads(part)
            except BAD_JSON:
                value = None
    return key or "/".join(nested[:_NESTED_DEPTH]), value


def _settings(config: bytes) -> dict[str, Any]:
    """Plain settings; W&B stores some as `{"value": …}`, and its own under `_wandb`."""
    found = {}
    for item in parts(config, 1):
        name, value = _item(item)
        if isinstance(value, dict) and "value" in value:
            value = value["value"]
        if name and not name.startswith("_"):
            found[name] = value
            if isinstance(value, dict):
                found.update({f"{name}/{inner}": one for inner, one in list(value.items())[:200]})
    return plain_settings(found)


def _alert(part: bytes) -> dict[str, Any]:
    parts = [next(texts(part, number), "")[:500] for number in (1, 2)]
    return {"text": ": ".join(text for text in parts if text)}


# The file


def _records(path: Path, log: Log) -> Iterator[bytes]:
    """The records, joined from their pieces."""
    try:
        with open(path, "rb") as file:
            head = file.read(BLOCK)
            if not head.startswith(MAGIC):
                raise UnreadableInput(f"{path} is not a {LABEL}: it does not begin with {MAGIC!r}")
            pieces: list[bytes] = []
            at, held, broken = HEADER, 0, 0
            block = head
            while block:
                kinds: Iterator[tuple[int, bytes]] = _pieces(block, at)
                for kind, piece in kinds:
                    if kind == _FULL:
                        pieces, held = [], 0
                        yield piece
                    elif kind == _FIRST:
                        pieces, held = [piece], len(piece)
                    elif kind in (_MIDDLE, _LAST) and pieces:
                        held += len(piece)
                        if held <= MAX_RECORD_BYTES:
                            pieces.append(piece)
                        if kind == _LAST:
                            if held <= MAX_RECORD_BYTES:
                                yield b"".join(pieces)
                            pieces, held = [], 0
                    else:
                        broken += 1
                block, at = file.read(BLOCK), 0
            if pieces or broken:
                log.notes.append("the file is truncated or damaged: some records are incomplete")
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


def _pieces(block: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """The pieces of a block; a length beyond its end ends it."""
    while len(block) - at >= _PIECE.size:
        _, length, kind = _PIECE.unpack_from(block, at)
        at += _PIECE.size
        if kind == 0 and length == 0:
            return
        if length > len(block) - at:
            yield 0, b""
            return
        yield kind, block[at : at + length]
        at += length


READERS = (LogReader(FORMAT, LABEL, recognise, read),)
