"""Hypothesis strategies for records, damage to files, and equality that knows NaN."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from headway.core.records import (
    Column,
    EventRecord,
    Header,
    Record,
    SetupRecord,
    StepRecord,
    TensorRecord,
)
from headway.core.signals import Signal

HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]
lightly = settings(max_examples=30, deadline=None, suppress_health_check=HEALTH)
"""For tests that touch the disk or build whole streams."""
thoroughly = settings(max_examples=100, deadline=None, suppress_health_check=HEALTH)
"""For tests of a single function."""

counts = st.integers(min_value=0, max_value=10**9)
floats = st.floats(allow_nan=True, allow_infinity=True)
names = st.text(min_size=1, max_size=8)
facts = st.dictionaries(
    names,
    st.recursive(
        # The names of the non-finite numbers are reserved: no fact is that very text.
        st.none()
        | st.booleans()
        | st.integers()
        | floats
        | st.text().filter(lambda text: text not in ("NaN", "Infinity", "-Infinity")),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**600), max_value=10**600)
    | st.integers(min_value=-2, max_value=5)
    | floats
    | st.text(max_size=5)
    | st.sampled_from(["NaN", "step", "header", "tensor", "event", "setup"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)
"""Anything JSON can say."""

signals = st.builds(
    Signal,
    span=st.integers(1, 1000),
    fold=st.sampled_from(["last", "mean", "sum", "max", "min"]),
    nonfinite=st.sampled_from(["kept", "filtered"]),
    scope=st.sampled_from(["rank", "global"]),
    digits=st.none() | st.integers(1, 17),
    every=st.integers(1, 1000),
)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    values = draw(st.lists(floats, max_size=4))
    if draw(st.booleans()):
        return Column(values)
    return Column(values, draw(st.lists(counts, min_size=len(values), max_size=len(values))))


headers = st.builds(
    Header,
    source=names,
    signals=st.dictionaries(names, signals, max_size=3),
    axes=st.dictionaries(names, st.lists(names, max_size=3).map(tuple), max_size=2),
    facts=facts,
    world_size=st.integers(1, 4096),
    segment=counts,
    seq=counts,
)
steps = st.builds(
    StepRecord,
    segment=counts,
    seq=counts,
    step=counts,
    values=st.dictionaries(names, floats, max_size=4),
    columns=st.dictionaries(names, columns(), max_size=2),
    held=st.booleans(),
)
setups = st.builds(SetupRecord, segment=counts, seq=counts, topic=names, facts=facts, step=counts)
tensors = st.builds(
    TensorRecord,
    segment=counts,
    seq=counts,
    step=counts,
    name=names,
    role=st.sampled_from(["weight", "buffer", "moment", "gradient", "input"]),
    dtype=st.sampled_from(["", "float32", "bfloat16"]),
    shape=st.lists(counts, max_size=3).map(tuple),
    stats=st.dictionaries(names, floats, max_size=3),
    facts=facts,
)
events = st.builds(EventRecord, segment=counts, seq=counts, step=counts, kind=names, data=facts)
observed = st.one_of(steps, setups, tensors, events)
records = st.one_of(headers, observed)


@st.composite
def streams(draw: st.DrawFn, *, rank: int = 0, max_size: int = 12) -> list[Record]:
    """What one rank writes: a header, then records of any kind, numbered in order."""
    segment, seq = 0, 0
    stream: list[Record] = [replace(draw(headers), segment=0, seq=0, rank=rank)]
    for record in draw(st.lists(observed | headers, max_size=max_size)):
        if isinstance(record, Header) and draw(st.booleans()):  # a resume
            segment, seq = segment + 1, 0
        else:  # a header may bear the number of the record it precedes
            after_header = isinstance(stream[-1], Header) and not isinstance(record, Header)
            seq += draw(st.integers(0 if after_header else 1, 3))
        stream.append(replace(record, segment=segment, seq=seq, rank=rank))
    return stream


@contextmanager
def quick_folder() -> Iterator[Path]:
    """An empty folder, in memory where the system offers that: for tests of thousands of writes."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The bytes after one of the things that happen to files."""
    damaged = bytearray(data)
    at = rng.randrange(len(damaged) + 1)
    upto = min(len(damaged), at + rng.choice([1, 1, 1, 4, 40]))
    way = rng.randrange(6)
    if way == 0:
        damaged[at:upto] = bytes(rng.randrange(256) for _ in range(upto - at))
    elif way == 1:
        del damaged[at:upto]
    elif way == 2:
        del damaged[at:]
    elif way == 3:
        damaged[at:at] = damaged[at:upto] * rng.choice([1, 2, 50])
    elif way == 4:
        damaged[at:upto] = rng.choice(
            [b"\n", b"{", b"}", b"[", b'"', b"null", b"-", b"9" * 400, b"1e999", b"\x00", b"true"]
        )
    else:
        there = rng.randrange(len(damaged) + 1)
        damaged[at:upto], damaged[there:there] = b"", damaged[at:upto]
    return bytes(damaged)


def same(one: Any, other: Any) -> bool:
    """Equality of plain data and records in which NaN equals NaN, and 1.0 is not True."""
    if is_dataclass(one) and is_dataclass(other):
        return type(one) is type(other) and all(
            same(getattr(one, item.name), getattr(other, item.name)) for item in fields(one)
        )
    if isinstance(one, float) or isinstance(other, float):
        if isinstance(one, (str, bool)) or isinstance(other, (str, bool)):
            return False
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)
