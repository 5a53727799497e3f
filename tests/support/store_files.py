"""What the tests of the readers of stores share: the kept files, and damage done to them."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from headway.errors import UnreadableInput
from headway.logs.log_file import sample
from headway.logs.log_table import Log
from headway.logs.readers import Reader, readers
from support.strategies import mutated

DATA = Path(__file__).parents[1] / "data"


def column(log: Log, name: str) -> dict[int, float]:
    """A column by step; of several values at one step the last."""
    series = log.table.series[name]
    return {
        log.table.steps[row]: value for row, value in zip(series.rows, series.values, strict=True)
    }


def sound(log: Log) -> None:
    """What holds of every log that was read."""
    assert log.used <= log.lines
    assert 0 <= log.share <= 1
    for series in log.table.series.values():
        assert len(series.rows) == len(series.values)
        rows = list(series.rows)
        assert rows == sorted(set(rows))
        assert not rows or rows[-1] < len(log.table)
    assert all(isinstance(note, str) for note in log.notes)


def reader_named(form: str) -> Reader:
    """The reader of a format."""
    return next(reader for reader in readers() if form == reader.format)


def survives(reader: Reader, original: Path, folder: Path, count: int, seed: int = 0) -> None:
    """Reads the file after many kinds of damage: a log or UnreadableInput, and no file written."""
    rng = random.Random(seed)
    data = original.read_bytes()
    path = folder / original.name
    for _ in range(count):
        damaged = data
        for _ in range(rng.choice([1, 1, 2, 5])):
            damaged = mutated(damaged, rng)
        path.write_bytes(damaged)
        score = reader.recognise(sample(path))
        assert 0 <= score <= 1
        with suppress(UnreadableInput):
            sound(reader.read(path))
        assert [file.name for file in folder.iterdir()] == [path.name]
    path.unlink()


def refuses(reader: Reader, path: Path) -> str:
    """The one line it says."""
    with pytest.raises(UnreadableInput) as caught:
        reader.read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)
