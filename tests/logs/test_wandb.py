"""Offline files of the real W&B client."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from support.store_files import DATA, column, reader_named, refuses, sound, survives

from headway.core.signals import Signal
from headway.logs import readers
from headway.logs.formats import wandb

FILES = DATA / "wandb"
EXPECTED = json.loads((FILES / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_every_row_is_there(name: str) -> None:
    log = readers.read(FILES / f"{name}.wandb")
    sound(log)
    assert (log.format, log.unit, log.share) == ("wandb", "step", 1)
    expected = dict(enumerate(EXPECTED[name]))
    assert column(log, "loss") == pytest.approx(expected, nan_ok=True)
    assert set(log.table.series) == {"loss", "opt/lr"}
    assert not log.notes


def test_settings_are_facts_and_alerts_are_told() -> None:
    log = wandb.read(FILES / "faulty.wandb")
    assert log.facts["lr"] == 1e-3
    assert log.facts["batch_size"] == 8
    assert log.facts["optimizer/eps"] == 1e-8
    (alert,) = log.events
    assert (alert.kind, alert.data) == ("note", {"text": "loss: the loss is NaN"})


def test_a_trainer_says_its_own_step_and_what_its_loss_is() -> None:
    log = wandb.read(FILES / "trainer.wandb")
    assert list(log.table.steps) == list(range(10, 110, 10))
    assert column(log, "train/grad_norm")[50] == math.inf
    assert log.signals["train/loss"] == Signal(span=10, fold="mean", nonfinite="filtered", every=10)


def message(number: int, data: bytes) -> bytes:
    size = b""
    for value in (number << 3 | 2, len(data)):
        while value > 127:
            size += bytes([value & 127 | 128])
            value >>= 7
        size += bytes([value])
    return size + data


def record(step: int, loss: str, padding: int = 0) -> bytes:
    items = [("_step", str(step)), ("loss", loss), ("pad", json.dumps("x" * padding))]
    return message(
        2, b"".join(message(1, message(2, k.encode()) + message(16, v.encode())) for k, v in items)
    )


def file_of(records: list[bytes]) -> bytes:
    """Pieces in blocks of 32 KiB."""
    out = bytearray(b":W&B\xa4\xbe\x00")
    for data in records:
        first = True
        while data or first:
            room = wandb.BLOCK - len(out) % wandb.BLOCK
            if room < 7:
                out += bytes(room)
                continue
            piece, data = data[: room - 7], data[room - 7 :]
            kind = (1 if not data else 2) if first else (4 if not data else 3)
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
    return bytes(out)


def test_records_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "run.wandb"
    records = [record(n, f"{n}.5", padding=(n * 7919) % 90_000) for n in range(40)]
    path.write_bytes(file_of(records))
    log = readers.read(path)
    assert column(log, "loss") == {n: n + 0.5 for n in range(40)}


def test_a_torn_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.wandb"
    path.write_bytes(file_of([record(n, '"NaN"', 9000) for n in range(9)])[:-4000])
    log = readers.read(path)
    assert len(log.table) == 8
    assert math.isnan(column(log, "loss")[0])
    assert log.notes == ["the file is truncated or damaged: some records are incomplete"]


def test_a_record_without_end_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb, "MAX_RECORD_BYTES", 1 << 16)
    path = tmp_path / "run.wandb"
    path.write_bytes(file_of([record(1, "2", 200_000), record(2, "3")]))
    assert column(wandb.read(path), "loss") == {2: 3.0}


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"hello")
    assert "does not begin with" in refuses(reader_named("wandb"), path)


@pytest.mark.parametrize("name", ["faulty", "trainer"])
def test_damage(tmp_path: Path, name: str) -> None:
    survives(reader_named("wandb"), FILES / f"{name}.wandb", tmp_path, 300)
