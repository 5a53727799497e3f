"""Event files of the real writers, against what TensorBoard's own reader says of them."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from pathlib import Path

import pytest
from support.store_files import DATA, column, reader_named, sound, survives

from headway.core.signals import Signal
from headway.errors import UnreadableInput
from headway.logs import readers
from headway.logs.formats import tensorboard
from headway.logs.log_file import sample

FILES = DATA / "tensorboard"
EXPECTED = json.loads((FILES / "expected.json").read_text())


def named(name: str) -> Path:
    return FILES / f"events.out.tfevents.{name}"


@pytest.mark.parametrize("name", EXPECTED)
def test_every_point_is_there(name: str) -> None:
    log = readers.read(FILES / name)
    sound(log)
    assert (log.format, log.unit) == ("tensorboard", "step")
    assert log.table.series.keys() == EXPECTED[name].keys()
    for tag, points in EXPECTED[name].items():
        assert len(log.table.series[tag]) == len(points)
        assert column(log, tag) == pytest.approx(dict(points), nan_ok=True, rel=1e-6)


def test_NaN_is_kept() -> None:
    losses = column(tensorboard.read(named("faulty")), "train/loss")
    assert min(step for step, loss in losses.items() if math.isnan(loss)) == 90


def test_a_run_started_again_keeps_what_came_before() -> None:
    log = tensorboard.read_many([named("restarted1"), named("restarted0")])
    sound(log)
    assert list(log.table.steps) == [*range(70), *range(40, 90)]
    values = log.table.series["loss"].values
    assert sum(map(math.isnan, values)) == 10
    (again,) = log.events
    assert (again.row, again.kind, again.data) == (70, "restart", {"step": 40})
    assert log.notes[0] == "2 event files joined"


def test_writers_side_by_side_share_their_rows(tmp_path: Path) -> None:
    paths = []
    for folder in ("train", "validation"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "events.out.tfevents.1")
        shutil.copy(named("restarted0"), paths[-1])
    log = tensorboard.read_many(paths)
    assert len(log.table) == 70
    assert set(log.table.series) == {"train/loss", "validation/loss"}
    assert not log.events


def test_settings_and_meanings_of_the_trainer() -> None:
    log = tensorboard.read(named("trainer"))
    assert log.facts["max_grad_norm"] == 1.0
    assert log.facts["bf16"] is True
    assert log.facts["lr"] == pytest.approx(1e-3)
    assert (log.facts["optimizer"], log.facts["nesterov"]) == ("adamw", False)
    assert log.signals["train/loss"] == Signal(span=10, fold="mean", nonfinite="filtered", every=10)
    assert log.signals["train/grad_norm"] == Signal(every=10)


def test_a_torn_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(named("restarted0").read_bytes()[:-30])
    log = readers.read(path)
    assert list(log.table.steps) == list(range(69))
    assert "is truncated: its last" in log.notes[0]


def scalar(tag: bytes, value: float, step: int | None) -> bytes:
    inner = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(inner)]) + inner
    counted = b"" if step is None else b"\x10" + bytes([step])
    body = b"\x09" + struct.pack("<d", 1e9) + counted + b"\x2a" + bytes([len(summary)]) + summary
    return struct.pack("<QI", len(body), 0) + body + b"\0\0\0\0"


def test_points_at_one_step_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"".join(scalar(b"loss", n, 3 + n // 2) for n in range(4)))
    log = readers.read(path)
    assert list(log.table.steps) == [3, 3, 4, 4]
    assert list(log.table.series["loss"].values) == [0.0, 1.0, 2.0, 3.0]


def test_points_without_a_step_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"".join(scalar(b"loss", n, None) for n in range(5)))
    log = readers.read(path)
    assert log.unit == "row"
    assert column(log, "loss") == {n: float(n) for n in range(5)}


@pytest.mark.parametrize("length", [1 << 60, (1 << 64) - 1, 1 << 31])
def test_a_length_that_lies(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x"
    good = named("restarted0").read_bytes()
    path.write_bytes(good + struct.pack("<QI", length, 0) + b"x" * 100)
    log = tensorboard.read(path)
    assert len(log.table) == 70
    assert len(log.notes) == 1


def test_records_across_blocks_and_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tensorboard.read(named("healthy"))
    monkeypatch.setattr(tensorboard, "BLOCK", 100)
    small = tensorboard.read(named("healthy"))
    assert small.table.series.keys() == whole.table.series.keys()
    assert list(small.table.series["lr"].values) == list(whole.table.series["lr"].values)
    monkeypatch.setattr(tensorboard, "MAX_RECORD_BYTES", 120)
    assert len(tensorboard.read(named("healthy")).table.series["lr"]) == 120


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="cannot read"):
        tensorboard.read_many([tmp_path / "missing"])
    with pytest.raises(UnreadableInput):
        tensorboard.read_many([])


def test_other_bytes_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for data in (b"hello world, this is text\n" * 9, os.urandom(4000), b"\0" * 4000):
        path.write_bytes(data)
        assert tensorboard.recognise(sample(path)) == 0


@pytest.mark.parametrize("name", ["restarted0", "tensors", "trainer"])
def test_damage(tmp_path: Path, name: str) -> None:
    survives(reader_named("tensorboard"), named(name), tmp_path, 300)
