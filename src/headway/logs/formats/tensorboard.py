"""TensorBoard event files: every point of every scalar, including NaN.

A file is a sequence of records (length, checksum, message, checksum). Almost all are one scalar at
one step, and the bytes before the value are always the same for a tag: they are looked up and not
parsed again. Checksums are not verified; a length beyond the end of the file ends the reading, with
a note in the log.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os.path import commonpath
from pathlib import Path
from typing import Any, BinaryIO

from headway.errors import UnreadableInput
from headway.logs.formats.hf_trainer import describe_trainer, is_trainer
from headway.logs.log_file import Sample
from headway.logs.log_table import MAX_COLUMNS, Log, LogEvent, Table, add_points, number_rows
from headway.logs.protobuf_wire import (
    DOUBLE,
    FLOAT,
    BadProto,
    decode_scalar_tensor,
    fields,
    parts,
    signed,
    varint,
)
from headway.logs.readers import LogReader
from headway.logs.row_fields import plain_settings

FORMAT = "tensorboard"
LABEL = "TensorBoard event file"

BLOCK = 1 << 22
"""Bytes read at a time."""
MAX_RECORD_BYTES = 1 << 24
"""A longer record is an image or a graph and is skipped."""

_FRAME = struct.Struct("<Q")
_HEAD, _TAIL = 12, 4
_START = 1
_LOW = (1 << 64) - 1
_HPARAMS = "_hparams_/"
_SETTINGS = ("args/text_summary",)
"""Text summary with the arguments of the Hugging Face Trainer."""


@dataclass(slots=True)
class _Points:
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class _Events:
    """The content of one file."""

    path: Path
    points: dict[str, _Points] = field(default_factory=dict)
    first: float = math.inf
    last: float = -math.inf
    starts: int | None = None
    """The step that the file restarts from, if it has one (`purge_step`)."""
    records: int = 0
    used: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    known: dict[bytes, tuple[Callable[[int], None], Callable[[float], None]]] = field(
        default_factory=dict
    )
    """Functions that take step and value, by the bytes before the value."""

    def of(self, tag: str) -> _Points | None:
        found = self.points.get(tag)
        if found is None and len(self.points) < MAX_COLUMNS:
            found = self.points[tag] = _Points()
        return found


def recognise(sample: Sample) -> float:
    """Certain if the first record has the version of the format."""
    head = sample.head
    if len(head) < _HEAD + _TAIL:
        return 0.0
    (length,) = _FRAME.unpack_from(head)
    if length > 1 << 12 or length + _HEAD + _TAIL > len(head):
        return 0.0
    message = head[_HEAD : _HEAD + length]
    if b"brain.Event:" in message:
        return 1.0
    try:
        numbers = {number for number, _ in fields(message)}
    except BadProto:
        return 0.0
    return 0.6 if 1 in numbers and numbers <= set(range(1, 11)) else 0.0


def read(path: Path) -> Log:
    """Reads one file."""
    return read_many([path])


def read_many(paths: Sequence[Path]) -> Log:
    """Reads several files as one log: of writers side by side, and of restarted runs.

    A file that begins after another ended and has a tag in common with it is a restart: its rows
    come after, and no point of the earlier file is lost. Writers that ran at the same time share
    their rows. If there are several folders, their names are put before the tags.
    """
    if not paths:
        raise UnreadableInput("no event file given")
    files = sorted((_read_events(path) for path in paths), key=lambda one: (one.first, one.path))
    _prefix(files)
    whole = Log(FORMAT, Path(paths[0]), Table())
    if len(paths) > 1:
        whole.path = Path(commonpath([path.absolute() for path in paths]))
        whole.notes.append(f"{len(paths)} event files joined")
    for session in _sessions(files):
        _append(whole, session)
    for one in files:
        whole.lines += one.records
        whole.used += one.used
        whole.facts.update(one.facts)
        whole.notes.extend(one.notes)
    _finish(whole)
    return whole


def _finish(log: Log) -> None:
    number_rows(log)
    tags = [tag.rpartition("/")[2] for tag in log.table.series]
    if tags and all(tag.startswith(("epoch_", "evaluation_")) for tag in tags):
        log.unit = "epoch"  # tags of Keras
    if is_trainer(log):
        describe_trainer(log, "train/")


def _prefix(files: Sequence[_Events]) -> None:
    folders = {one.path.absolute().parent for one in files}
    if len(folders) < 2:
        return
    root = Path(commonpath(folders))
    for one in files:
        folder = one.path.absolute().parent.relative_to(root).as_posix()
        if folder != ".":
            one.points = {f"{folder}/{tag}": found for tag, found in one.points.items()}


def _sessions(files: Sequence[_Events]) -> Iterator[list[_Events]]:
    """Groups of files written at the same time; each group is a restart of the one before."""
    group: list[_Events] = []
    for one in files:
        shared = {tag for other in group for tag in other.points} & one.points.keys()
        ended = max((other.last for other in group if other.points), default=math.inf)
        # A single point after the end is a final evaluation, which opens a file of its own.
        more = any(len(one.points[tag].steps) > 1 for tag in shared) and one.first >= ended
        if more or (shared and one.starts is not None):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _append(log: Log, session: Sequence[_Events]) -> None:
    """Adds the files of one start of the run."""
    begin = len(log.table)
    points = ((tag, own.steps, own.values) for one in session for tag, own in one.points.items())
    if not add_points(log.table, points) or not begin:
        return
    start = next((one.starts for one in session if one.starts is not None), None)
    step = log.table.steps[begin] if start is None else start
    log.events.append(LogEvent(begin, "restart", {"step": step}))
    log.notes.append(f"restarted at step {step} in {session[0].path.name}")


# One file


def _read_events(path: Path) -> _Events:
    events = _Events(path)
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            for block, spans in _records(file, size, events):
                _messages(events, block, spans)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    return events


def _records(
    file: BinaryIO, size: int, events: _Events
) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
    """Blocks of the file, with the range of each message."""
    place, unpack = 0, _FRAME.unpack_from
    while place < size:
        file.seek(place)
        block = file.read(BLOCK)
        spans: list[tuple[int, int]] = []
        at, have = 0, len(block)
        needed = 0
        while at + _HEAD <= have:
            (length,) = unpack(block, at)
            after = at + _HEAD + length + _TAIL
            if after > have:
                needed = length
                break
            spans.append((at + _HEAD, after - _TAIL))
            at = after
        if spans:
            yield block, spans
            place += at
            continue
        left = size - place
        if not needed or needed + _HEAD + _TAIL > left:
            events.notes.append(
                f"{events.path.name} is truncated: its last {left} bytes are not a record"
            )
            return
        if needed <= MAX_RECORD_BYTES:
            file.seek(place)
            block = file.read(needed + _HEAD + _TAIL)
            if len(block) < needed + _HEAD + _TAIL:
                return
            yield block, [(_HEAD, _HEAD + needed)]
        else:
            events.records += 1
        place += needed + _HEAD + _TAIL


def _messages(events: _Events, block: bytes, spans: Sequence[tuple[int, int]]) -> None:
    """Reads the messages of a block. Most are 9 bytes of time, a step, and a scalar."""
    find, value_at = events.known.get, FLOAT.unpack_from
    last, quickly = -1, 0
    for at, end in spans:
        if end - at > 16 and block[at] == 0x09:
            place, step = at + 9, 0
            if block[place] == 0x10:
                step, place = block[place + 1], place + 2
                shift = 7
                while step >> shift and shift < 64:  # the high bit of a varint: more bytes follow
                    step += (block[place] - 1) << shift
                    place += 1
                    shift += 7
            found = find(block[place : end - 4])
            if found is not None:
                add_step, add_value = found
                add_step(step if step < 1 << 63 else signed(step & _LOW))
                add_value(value_at(block, end - 4)[0])
                quickly += 1
                last = at
                continue
        try:
            _any_event(events, block[at:end])
        except BadProto:
            continue
    events.records += len(spans)
    events.used += quickly
    if last >= 0:
        events.last = max(events.last, DOUBLE.unpack_from(block, last + 1)[0])


def _any_event(events: _Events, message: bytes) -> None:
    time, step, used = math.nan, 0, False
    starts = False
    summaries: list[bytes] = []
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            (time,) = DOUBLE.unpack(value)
        elif number == 2 and isinstance(value, int):
            step = signed(value)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
        elif number == 7 and isinstance(value, bytes):
            starts = (1, _START) in fields(value)
    for summary in summaries:
        for value in parts(summary, 1):
            used |= _value(events, step, value)
    if starts and events.starts is None and not events.used:
        events.starts = step
    if math.isfinite(time):
        events.first = min(events.first, time)
        events.last = max(events.last, time)
    events.used += used
    _remember(events, message, summaries)


def _remember(events: _Events, message: bytes, summaries: Sequence[bytes]) -> None:
    """The bytes before the value, if the message is one scalar with its value last."""
    if len(summaries) != 1 or len(events.known) >= 4 * MAX_COLUMNS:
        return
    only = list(fields(summaries[0]))
    if len(only) != 1 or only[0][0] != 1 or not isinstance(only[0][1], bytes):
        return
    inner = list(fields(only[0][1]))
    if [number for number, _ in inner] != [1, 2] or not isinstance(inner[1][1], bytes):
        return
    tail = _tail(message)
    tag = inner[0][1]
    if tail is not None and isinstance(tag, bytes) and len(inner[1][1]) == 4:
        points = events.points.get(tag.decode("utf-8", errors="replace"))
        if points is not None:
            events.known[tail[:-4]] = points.steps.append, points.values.append


def _tail(message: bytes) -> bytes | None:
    """What follows time and step, if it is only a summary."""
    if message[0] != 0x09:
        return None
    at = 9
    if message[at] == 0x10:
        _, at = varint(message, at + 1)
    if message[at] != 0x2A:
        return None
    length, inside = varint(message, at + 1)
    return message[at:] if inside + length == len(message) else None


def _value(events: _Events, step: int, value: bytes) -> bool:
    tag, found, tensor, metadata = "", None, None, b""
    for number, part in fields(value):
        if number == 1 and isinstance(part, bytes):
            tag = part.decode("utf-8", errors="replace")
        elif number == 2 and isinstance(part, bytes) and len(part) == 4:
            (found,) = FLOAT.unpack(part)
        elif number == 8 and isinstance(part, bytes):
            tensor = part
        elif number == 9 and isinstance(part, bytes):
            metadata = part
    if tag.startswith(_HPARAMS):
        events.facts.update(_hparams(metadata))
        return False
    if found is None and tensor is not None:
        if tag in _SETTINGS:
            events.facts.update(_text_settings(tensor))
            return False
        found = decode_scalar_tensor(tensor)
    points = events.of(tag) if found is not None and tag else None
    if points is None or found is None:
        return False
    points.steps.append(step)
    points.values.append(found)
    return True


def _hparams(metadata: bytes) -> dict[str, Any]:
    """Settings written with `add_hparams`."""
    found: dict[str, Any] = {}
    for plugin in parts(metadata, 1):
        for content in parts(plugin, 2):
            for start in parts(content, 3):
                for entry in parts(start, 1):
                    name = next(iter(parts(entry, 1)), b"").decode("utf-8", errors="replace")
                    for value in parts(entry, 2):
                        found[name] = _setting(value)
    return plain_settings(found)


def _setting(value: bytes) -> Any:
    for number, part in fields(value):
        if number == 2 and isinstance(part, bytes) and len(part) == 8:
            return DOUBLE.unpack(part)[0]
        if number == 3 and isinstance(part, bytes):
            return part.decode("utf-8", errors="replace")
        if number == 4:
            return bool(part)
    return None


def _text_settings(tensor: bytes) -> dict[str, Any]:
    for text in parts(tensor, 8):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return plain_settings(found)
    return {}


READERS = (LogReader(FORMAT, LABEL, recognise, read),)
