"""Any CSV of numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.store_files import column, reader_named, sound, survives

from headway.errors import UnreadableInput
from headway.logs import readers
from headway.logs.formats import csv_logs
from headway.logs.log_table import Log

LOSSES = [2.5, 2.0, 1.5, math.nan, math.inf]


def read(path: Path, text: str) -> Log:
    path.write_text(text)
    log = readers.read(path)
    sound(log)
    return log


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize("count", ["step", " Iteration", "global_step", "epoch", '"Step"'])
def test_separators_and_names(tmp_path: Path, separator: str, count: str) -> None:
    rows = "\n".join(f"{n}{separator} {loss}" for n, loss in enumerate(LOSSES))
    log = read(tmp_path / "x", f"{count}{separator} loss \n{rows}\n")
    assert log.format == "csv"
    assert log.unit == ("epoch" if count == "epoch" else "step")
    assert column(log, "loss") == pytest.approx(dict(enumerate(LOSSES)), nan_ok=True)


def test_blanks_are_no_values_and_a_torn_line_is_told(tmp_path: Path) -> None:
    log = read(tmp_path / "x.csv", "step,loss,val\r\n1,2.0,\r\n2,1.5,3\r\n,,4\r\n3,1")
    assert column(log, "loss") == {1: 2.0, 2: 1.5}
    assert column(log, "val") == {2: 4.0}
    assert list(log.table.steps) == [1, 2, 2]
    assert log.notes == ["1 of 4 lines skipped: no number, or damaged"]


def test_fractions_of_an_epoch_count_nothing(tmp_path: Path) -> None:
    log = read(tmp_path / "x.csv", "epoch,loss\n0.1,2\n0.2,1\n0.3,1\n")
    assert log.unit == "row"
    assert list(log.table.steps) == [0, 1, 2]
    assert column(log, "epoch")[1] == 0.2


def test_batches_that_begin_anew_with_every_epoch_go_on(tmp_path: Path) -> None:
    rows = "".join(f"{epoch},{batch},1.5\n" for epoch in range(3) for batch in range(4))
    log = read(tmp_path / "x.csv", "epoch,batch,loss\n" + rows)
    assert list(log.table.steps) == list(range(12))
    assert "restarts in each epoch" in log.notes[0]


def test_a_run_started_again_is_no_new_epoch(tmp_path: Path) -> None:
    log = read(tmp_path / "x.csv", "epoch,step,loss\n0,1,2\n0,2,2\n1,3,1\n0,2,2\n1,3,1\n")
    assert list(log.table.steps) == [1, 2, 3, 2, 3]


def test_rows_of_held_out_data_are_told_by_a_word(tmp_path: Path) -> None:
    log = read(tmp_path / "x.csv", "step,split,loss\n1,train,2\n1,val,3\n2,train,1\n2,val,4\n")
    assert column(log, "loss") == {1: 2.0, 2: 1.0}
    assert column(log, "val/loss") == {1: 3.0, 2: 4.0}


def test_a_name_and_a_value_in_each_row(tmp_path: Path) -> None:
    log = read(tmp_path / "x.csv", "step,tag,value\n1,loss,2\n1,lr,0.1\n2,loss,nan\n")
    assert column(log, "loss") == pytest.approx({1: 2.0, 2: math.nan}, nan_ok=True)
    assert set(log.table.series) == {"loss", "lr"}


def test_an_export_of_tensorboard_is_named_by_its_tag(tmp_path: Path) -> None:
    log = read(
        tmp_path / "run-a-tag-train_loss.csv", "Wall time,Step,Value\n1.5,1,2.5\n2.5,2,NaN\n"
    )
    assert column(log, "train_loss") == pytest.approx({1: 2.5, 2: math.nan}, nan_ok=True)


def test_an_export_of_weights_and_biases_is_one_run(tmp_path: Path) -> None:
    header = ",".join(
        f'"{name}"' for name in ("Step", "a - loss", "a - loss__MIN", "a - loss__MAX", "b - loss")
    )
    log = read(tmp_path / "x.csv", header + '\n"1","2.5","2.5","2.5",""\n"2","NaN","","","7"\n')
    assert column(log, "loss") == pytest.approx({1: 2.5, 2: math.nan}, nan_ok=True)
    assert set(log.table.series) == {"loss"}
    assert log.notes == ["2 runs in one file; only a was read"]


@pytest.mark.parametrize(
    "text",
    ["step,loss\n", "hello, world\nthis is, text\n", "1,2\n3,4\n", "a,b\nx,y\n", "step\n1\n"],
)
def test_what_is_none_is_not_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(UnreadableInput):
        readers.read(path)


def test_a_line_without_end_fills_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"step,loss\n1,2\n" + b"9" * (40 << 20) + b"\n2,1\n")
    log = csv_logs.read_csv(path)
    assert column(log, "loss") == {1: 2.0, 2: 1.0}


def test_damage(tmp_path: Path) -> None:
    original = tmp_path / "original.csv"
    original.write_text('step;"loss";x\n' + "".join(f"{n};{n / 7};nan\n" for n in range(30)))
    folder = tmp_path / "folder"
    folder.mkdir()
    survives(reader_named("csv"), original, folder, 300)


@pytest.mark.parametrize("row", ["{v}", "{n} {v}", "{n},{v}", "{n},1741687200000,{v}"])
def test_a_file_of_one_metric_needs_no_header(tmp_path: Path, row: str) -> None:
    lines = [row.format(n=n, v=value) for n, value in enumerate(LOSSES)]
    named, other = tmp_path / "train_loss.txt", tmp_path / "numbers.txt"
    for path in (named, other):
        path.write_text("\n".join(lines) + "\n")
    found = readers.read(named).table.series["train_loss"].values
    assert list(found) == pytest.approx(LOSSES, nan_ok=True)
    with pytest.raises(UnreadableInput):
        readers.read(other)
