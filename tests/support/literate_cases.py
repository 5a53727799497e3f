"""Literate fixtures: a Markdown page per check holds prose, records and the expected findings.

A case is a `##` section with a `records` block and a `findings` and/or `not-run` block.

    loss: 2.0..1.5~0.02*50, nan, -*3     one series per signal, `value[..end][~noise][*count]`;
                                         noise is relative, repeatable; `-` is a missing value
    param/grad_norm[enc.weight]: 1.0*9   one member of a column
    held: @11 @14                        steps whose update was held back
    signal: loss span=10 fold=mean       describe a signal (`every`, `nonfinite`, `digits`, …)
    source: hf-trainer                   the header's source; `ranks: 2` how many decide together
    log: hf-trainer                      the same, of a finished log: its cadence is rows
    segment: @30                         a new segment begins at this step (a resume)
    event: @5 action {"action": "skip"}  an event before step 5; `event: @5 crash rank=1 {…}` that
                                         of a rank; likewise `setup: @0 topic {…}` and
    tensor: @5 weight fc.weight {"nan": 3}    (stats; "facts", "dtype", "shape" may be among them)

    HD101 error @51 "loss is NaN"        code, severity, step, and words the message must hold

Steps count from 1. Findings are compared whole: none missing, none besides.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.numbers import decode_number
from headway.core.records import (
    Column,
    EventRecord,
    Header,
    Record,
    SetupRecord,
    StepRecord,
    TensorRecord,
)
from headway.core.signals import Signal, axis_of

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_TERM = re.compile(
    rf"^(?P<start>{_NUMBER}|nan|-?inf|-)"
    rf"(?:\.\.(?P<end>{_NUMBER}))?"
    r"(?:~(?P<noise>[\d.]+))?(?:\*(?P<count>\d+))?$"
)


@dataclass(frozen=True)
class Expected:
    """One line of a `findings` block."""

    code: str
    severity: str
    step: int | None
    words: str


@dataclass
class Case:
    """One section of a page."""

    title: str
    records: list[Record] = field(default_factory=list)
    findings: list[Expected] | None = None
    not_run: list[Expected] | None = None


def read_page(path: Path) -> list[Case]:
    """The cases of one page."""
    cases: list[Case] = []
    for section in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        case = Case(title=section.splitlines()[0].strip())
        for kind, body in re.findall(r"^```(\S+)\n(.*?)^```", section, flags=re.M | re.S):
            lines = [line.strip() for line in body.splitlines() if line.strip()]
            if kind == "records":
                case.records = read_records(lines)
            elif kind == "findings":
                case.findings = [_expected(line) for line in lines]
            elif kind == "not-run":
                case.not_run = [_expected(line) for line in lines]
            else:
                raise ValueError(f"{path}: unknown block {kind!r}")
        cases.append(case)
    return cases


def read_records(lines: list[str]) -> list[Record]:
    """The records of one block."""
    header: dict[str, Any] = {"source": "fixture"}
    described: dict[str, dict[str, Any]] = {}
    scalars: dict[str, list[float | None]] = {}
    members: dict[str, dict[str, list[float | None]]] = defaultdict(dict)
    axes: dict[str, list[str]] = defaultdict(list)
    extras: dict[int, list[tuple[str, str]]] = defaultdict(list)
    held: set[int] = set()
    resumed: list[int] = []
    for line in lines:
        key, _, rest = line.partition(":")
        key, rest = key.strip(), rest.strip()
        if key == "source":
            header["source"] = rest
        elif key == "log":
            header |= {"source": rest, "cadence": "rows"}
        elif key == "ranks":
            header["world_size"] = int(rest)
        elif key == "signal":
            name, *options = rest.split()
            described[name] = {
                option.split("=")[0]: _option(option.split("=")[1]) for option in options
            }
        elif key == "held":
            held = {int(word.lstrip("@")) for word in rest.split()}
        elif key == "segment":
            resumed = [int(word.lstrip("@")) for word in rest.split()]
        elif key in ("event", "setup", "tensor"):
            at, _, what = rest.partition(" ")
            extras[int(at.lstrip("@"))].append((key, what))
        elif "[" in key:
            column, member = key.rstrip("]").split("[", 1)
            axis = axis_of(column)
            assert axis, f"{column} does not begin with an axis"
            if member not in axes[axis]:
                axes[axis].append(member)
            members[column][member] = read_series(rest, seed=key)
        else:
            scalars[key] = read_series(rest, seed=key)
    return _assemble(header, described, scalars, members, axes, extras, held, resumed)


def read_series(text: str, *, seed: str) -> list[float | None]:
    """The values of one series."""
    rng = random.Random(seed)
    values: list[float | None] = []
    for term in text.split(","):
        match = _TERM.match(term.strip())
        if match is None:
            raise ValueError(f"cannot read {term.strip()!r}")
        count = int(match["count"] or 1)
        for position in range(count):
            if match["start"] == "-":
                values.append(None)
                continue
            start = float(match["start"])
            end = float(match["end"]) if match["end"] else start
            share = position / max(count - 1, 1)
            value = start + (end - start) * share if math.isfinite(start) else start
            values.append(value * (1 + float(match["noise"] or 0) * rng.uniform(-1, 1)))
    return values


def _assemble(
    header: dict[str, Any],
    described: dict[str, dict[str, Any]],
    scalars: dict[str, list[float | None]],
    members: dict[str, dict[str, list[float | None]]],
    axes: dict[str, list[str]],
    extras: dict[int, list[tuple[str, str]]],
    held: set[int],
    resumed: list[int],
) -> list[Record]:
    signals = {name: Signal(**described.get(name, {})) for name in {*scalars, *members, *described}}
    segment, seq = 0, 0
    records: list[Record] = [Header(signals=signals, axes=axes, segment=0, **header)]
    series = [*scalars.values(), *(item for group in members.values() for item in group.values())]
    last = max([len(item) for item in series] + [max(extras, default=0)])
    for step in range(last + 1):
        if step in resumed:
            segment, seq = segment + 1, 0
            records.append(Header(signals=signals, axes=axes, segment=segment, **header))
        for kind, what in extras.get(step, []):
            seq += 1
            records.append(_extra(kind, what, segment, seq, step))
        values = {
            name: item[step - 1]
            for name, item in scalars.items()
            if 0 < step <= len(item) and item[step - 1] is not None
        }
        columns = _columns(members, axes, step)
        if values or columns:
            seq += 1
            records.append(
                StepRecord(segment, seq, step, values, columns, held=step in held)  # type: ignore[arg-type]
            )
    return records


def _columns(
    members: dict[str, dict[str, list[float | None]]], axes: dict[str, list[str]], step: int
) -> dict[str, Column]:
    columns = {}
    for name, group in members.items():
        index, values = [], []
        for position, member in enumerate(axes[axis_of(name) or ""]):
            item = group.get(member, [])
            value = item[step - 1] if 0 < step <= len(item) else None
            if value is not None:
                index.append(position)
                values.append(value)
        if values:
            columns[name] = Column(values, index)
    return columns


def _extra(kind: str, what: str, segment: int, seq: int, step: int) -> Record:
    words, brace, body = what.partition("{")
    data = json.loads(brace + body) if brace else {}
    names = words.split()
    if kind == "event":
        rank = next((int(name[5:]) for name in names if name.startswith("rank=")), 0)
        return EventRecord(segment, seq, step, names[0], data, rank=rank)
    if kind == "setup":
        return SetupRecord(segment, seq, names[0], data, step=step)
    shape = tuple(data.pop("shape", ()))
    dtype = data.pop("dtype", "float32")
    facts = data.pop("facts", {})
    stats = {key: decode_number(value) for key, value in data.items()}
    return TensorRecord(segment, seq, step, names[1], names[0], dtype, shape, stats, facts)


def _expected(line: str) -> Expected:
    head, _, words = line.partition('"')
    parts = head.split()
    step = next((int(part[1:]) for part in parts if part.startswith("@")), None)
    severity = next((part for part in parts if part in ("info", "warning", "error")), "")
    return Expected(parts[0], severity, step, words.rstrip().removesuffix('"'))


def _option(text: str) -> Any:
    return int(text) if text.isdigit() else text
