"""Broken logs: every reader gives what it can, or says that it cannot read it, and nothing else."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import UnreadableInput
from headway.logs import readers
from headway.logs.key_values import pairs
from headway.logs.log_file import sample, strip_prefix

DATA = Path(__file__).parent.parent / "data" / "text"
FILES = sorted(DATA.glob("*/*.log"))
ODD = (
    b"\0",
    b"\xff\xfe",
    b"\r",
    b"\n",
    b"nan",
    b"-inf",
    b"1e999",
    b"9" * 60,
    b"/",
    b"[",
    b"]",
    b"(",
    b"=",
    b":",
)
ODD += (
    b"\x1b[",
    b"%|",
    b"1,2,3",
    b"epoch 99999999999999999999",
    b"step -1",
    b"0/0",
    b" \t ",
    b"{'",
    b"\xe2\x96",
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(data) + 1)
        way = rng.randrange(5)
        if way == 0:
            data = data[:at] + rng.choice(ODD) + data[at:]
        elif way == 1:
            data = data[:at] + data[at + rng.randint(1, 40) :]
        elif way == 2:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif way == 3:
            end = min(len(data), at + rng.randint(1, 400))
            data = data[:at] + data[at:end] * rng.randint(2, 4) + data[end:]
        else:
            data = data[:at]
        if not data:
            data = b"x"
    return data


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_mutations(path: Path, tmp_path: Path) -> None:
    rng = random.Random(path.as_posix()[-40:])
    data = path.read_bytes()[:6000]
    own = readers.reader_for(path)
    assert own is not None
    target = tmp_path / "broken.log"
    for _ in range(15):
        target.write_bytes(mutated(data, rng))
        try:
            readers.read(target)
            log = own.read(target)
            list(log.table.plain())
            assert log.used <= log.lines
            assert all(0 <= event.row <= len(log.table) for event in log.events)
            assert all(len(series) <= len(log.table) for series in log.table.series.values())
        except UnreadableInput:
            pass


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(max_size=300))
def test_any_line(line: str) -> None:
    rest, _ = strip_prefix(line)
    for pair in pairs(rest, {}):
        assert isinstance(pair.value, float)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(data)
    looked = sample(path)
    for reader in readers.readers():
        assert 0 <= reader.recognise(looked) <= 1
        with contextlib.suppress(UnreadableInput):
            reader.read(path)
