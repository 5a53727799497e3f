"""JSON lines, as all kinds of loggers write them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from support.store_files import column, reader_named, sound, survives

from headway.core.signals import Signal
from headway.errors import UnreadableInput
from headway.logs import json_rows, readers
from headway.logs.formats import json_logs
from headway.logs.log_file import sample
from headway.logs.log_table import Log

NAN = math.nan


def read(path: Path, rows: list[Any]) -> Log:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = readers.read(path)
    sound(log)
    return log


@pytest.mark.parametrize(
    "key",
    ["step", "global_step", "iter", "iteration", "trainer/global_step", "_step", "num_updates"],
)
def test_names_that_count(tmp_path: Path, key: str) -> None:
    log = read(tmp_path / "x", [{key: 5 * n, "loss": 2.5, "epoch": n // 2} for n in range(9)])
    assert (log.format, log.unit) == ("jsonl", "step")
    assert list(log.table.steps) == [5 * n for n in range(9)]
    assert set(log.table.series) == {"loss", "epoch"}


def test_epochs_count_where_nothing_else_does_and_rows_where_nothing_does(tmp_path: Path) -> None:
    assert read(tmp_path / "x", [{"epoch": n, "loss": 1.5} for n in range(5)]).unit == "epoch"
    log = read(tmp_path / "x", [{"epoch": n / 2, "loss": 1.5} for n in range(5)])
    assert log.unit == "row"
    assert list(log.table.steps) == [0, 1, 2, 3, 4]


def test_all_spellings_of_what_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "x"
    values = ["NaN", '"NaN"', '"nan"', "Infinity", '"Infinity"', '"-inf"', "-Infinity", "1e999"]
    path.write_text("".join(f'{{"step": {n}, "loss": {v}}}\n' for n, v in enumerate(values)))
    found = column(readers.read(path), "loss")
    expected = [NAN, NAN, NAN, math.inf, math.inf, -math.inf, -math.inf, math.inf]
    assert found == pytest.approx(dict(enumerate(expected)), nan_ok=True)


def test_objects_are_flattened_and_other_strings_left_out(tmp_path: Path) -> None:
    row = {"step": 1, "train": {"loss": 2, "deep": {"x": True}}, "time": "12:30", "l": [1]}
    log = read(tmp_path / "x", [row])
    assert {name: s.values[0] for name, s in log.table.series.items()} == {
        "train/loss": 2.0,
        "train/deep/x": 1.0,
    }


def test_a_torn_last_line_and_text_between_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text('{"step": 1, "loss": 2}\nhello\n\n{"step": 2, "loss": 1}\n{"step": 3, "lo')
    log = readers.read(path)
    assert column(log, "loss") == {1: 2.0, 2: 1.0}
    assert log.notes == ["2 of 4 lines skipped: no number, or damaged"]


def test_rows_of_evaluation_keep_their_place(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for n in range(40):
        rows.append({"step": n, "loss": 2.5})
        if n % 10 == 9:
            rows.append({"step": n, "val_loss": 3.5, "name": "x"})
    log = read(tmp_path / "x", rows)
    assert list(column(log, "val_loss")) == [9, 19, 29, 39]
    assert list(log.table.steps) == [row["step"] for row in rows]


def test_at_once_and_one_by_one_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    extra = [
        {},
        {"x": "NaN"},
        {"val": 2.5},
        {"x": None},
        {"x": {"y": 1}},
        {"loss": None},
        {"x": "s"},
    ]
    rows: list[Any] = []
    while len(rows) < 600:
        more = rng.choice(extra)
        rows += [{"step": len(rows) + n, "loss": 2.5, **more} for n in range(rng.randrange(1, 20))]
    fast = read(tmp_path / "x", rows)
    monkeypatch.setattr(json_rows.JsonRows, "_at_once", lambda self, rows: False)
    slow = read(tmp_path / "x", rows)
    assert fast.table.steps == slow.table.steps
    assert fast.table.series.keys() == slow.table.series.keys()
    for name, series in fast.table.series.items():
        assert series.rows == slow.table.series[name].rows
        assert list(series.values) == pytest.approx(
            list(slow.table.series[name].values), nan_ok=True
        )
    assert (fast.used, fast.lines) == (slow.used, slow.lines)


@pytest.mark.parametrize("word", ["val", "Eval", "validation", "test"])
@pytest.mark.parametrize("key", ["split", "mode", "phase"])
def test_rows_of_held_out_data_are_told_by_a_word(tmp_path: Path, key: str, word: str) -> None:
    rows = [{key: "train", "step": n, "loss": 2.0} for n in range(6)]
    rows += [{key: word, "step": 6, "loss": 3.0, "eval_acc": 0.5}] * 5
    log = read(tmp_path / "x", rows)
    assert set(column(log, "loss").values()) == {2.0}
    assert column(log, "val/loss") == {6: 3.0}
    assert column(log, "eval_acc") == {6: 0.5}


def test_an_older_log_of_openmmlab(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"env_info": "x", "seed": 0}]
    for epoch in (1, 2, 3):
        rows += [
            {"mode": "train", "epoch": epoch, "iter": n, "lr": 0.1, "loss": 2.5}
            for n in (50, 100, 150)
        ]
        rows.append({"mode": "val", "epoch": epoch, "iter": 5000, "lr": 0.1, "bbox_mAP": 0.5})
    log = read(tmp_path / "x.log.json", rows)
    assert list(column(log, "loss")) == [50 * n for n in range(1, 10)]
    assert list(column(log, "val/bbox_mAP")) == [150, 300, 450]


def test_a_name_and_a_value_in_each_row(tmp_path: Path) -> None:
    rows = [
        {"step": n, "name": name, "value": n + 0.5} for n in range(9) for name in ("loss", "lr")
    ]
    log = read(tmp_path / "x", rows)
    assert set(log.table.series) == {"loss", "lr"}
    assert column(log, "lr")[3] == 3.5


def test_numbers_kept_as_text(tmp_path: Path) -> None:
    log = read(tmp_path / "x", [{"step": str(n), "loss": "2.5", "note": "7"} for n in range(9)])
    assert column(log, "loss") == dict.fromkeys(range(9), 2.5)
    assert set(log.table.series) == {"loss"}


# What null means


def losses(*values: float | None) -> list[dict[str, Any]]:
    return [{"step": n, "loss": value, "lr": 0.1} for n, value in enumerate(values)]


def test_nulls_to_the_end_are_NaN(tmp_path: Path) -> None:
    log = read(tmp_path / "x", losses(2.5, 2.0, 1.5, None, None, None))
    assert [math.isnan(value) for value in log.table.series["loss"].values] == [False] * 3 + [
        True
    ] * 3
    assert log.notes == ["3 nulls in loss treated as NaN"]


def test_one_null_among_many_is_NaN(tmp_path: Path) -> None:
    log = read(tmp_path / "x", losses(*[2.5] * 20, None, *[2.5] * 20))
    assert math.isnan(column(log, "loss")[20])


def test_a_loss_logged_every_other_row_is_not(tmp_path: Path) -> None:
    log = read(tmp_path / "x", losses(*[2.5, None] * 20))
    assert len(log.table.series["loss"]) == 20
    assert log.notes == ["20 nulls in loss treated as missing"]


def test_rows_of_evaluation_with_all_names_are_not(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": n, "loss": 2.5, "val_loss": None} for n in range(50)]
    rows.append({"step": 50, "loss": None, "val_loss": 2.5})
    log = read(tmp_path / "x", rows)
    assert len(log.table.series["loss"]) == 50
    assert len(log.table.series["val_loss"]) == 1


def test_where_NaN_is_written_null_is_not_it(tmp_path: Path) -> None:
    log = read(tmp_path / "x", losses(2.5, NAN, None, None))
    assert len(log.table.series["loss"]) == 2


# Others


def test_llama_factory(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "current_steps": 10 * n,
            "total_steps": 100,
            "loss": 2.5 - n / 10,
            "lr": 1e-4,
            "epoch": n / 10,
            "percentage": 10.0 * n,
            "elapsed_time": "0:00:12",
            "remaining_time": "0:10:00",
        }
        for n in range(1, 10)
    ]
    rows.insert(5, {"current_steps": 50, "total_steps": 100, "eval_loss": 2.25, "epoch": 0.5})
    log = read(tmp_path / "trainer_log.jsonl", rows)
    assert log.format == "llama-factory"
    assert list(column(log, "loss")) == list(range(10, 100, 10))
    assert log.signals["loss"].span == 10
    assert log.signals["loss"].nonfinite == "filtered"
    assert log.signals["lr"] == Signal(every=10)
    assert log.facts["max_steps"] == 100


def test_our_own_steps_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "steps.rank0.jsonl"
    path.write_text('{"seg": 0, "seq": 1, "step": 1, "v": {"loss": 0.5}}\n' * 5)
    assert json_logs.recognise_jsonl(sample(path)) == 0
    with pytest.raises(UnreadableInput):
        readers.read(path)


@pytest.mark.parametrize("text", ['{"a": "b"}\n', "hello\n", "[1]\n", "{\n", '{"a": null}\n'])
def test_what_has_no_number_is_not_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UnreadableInput):
        readers.read(path)


def test_hostile_lines(tmp_path: Path) -> None:
    path = tmp_path / "x"
    good = b'{"step": 1, "loss": 2.5}\n'
    path.write_bytes(
        good
        + b'{"a":' * 100_000
        + b"\n"
        + good
        + b'{"x": "'
        + b"a" * (40 << 20)
        + b'"}\n'
        + good
        + b'{"step": 1e400, "loss": 1}\n{"step": '
        + b"9" * 300
        + b', "loss": '
        + b"9" * 400
        + b"}\n"
    )
    log = json_logs.read_jsonl(path)
    sound(log)
    assert (len(log.table), log.lines) == (5, 7)


def test_a_line_without_end_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'{"step": 1, "loss": 2.5}\n' + b"a" * (20 << 20))
    log = json_logs.read_jsonl(path)
    assert (len(log.table), log.lines) == (1, 2)


@pytest.mark.parametrize("depth", [20, 400, 900, 3000])
def test_objects_within_objects(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "x"
    deep = '{"a":' * depth + "1" + "}" * depth
    path.write_text('{"step": 1, "loss": 2.5}\n' + deep + "\n")
    assert column(readers.read(path), "loss") == {1: 2.5}
    path.write_text(f"[{deep}, {deep}]")
    with pytest.raises(UnreadableInput):
        readers.read(path)


@pytest.mark.parametrize("form", ["jsonl", "llama-factory"])
def test_damage(tmp_path: Path, form: str) -> None:
    original = tmp_path / "log.jsonl"
    rows = [
        {"step": n, "current_steps": n, "total_steps": 9, "loss": None if n % 7 else 1 / 7, "v": {}}
        for n in range(30)
    ]
    original.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "folder"
    folder.mkdir()
    survives(reader_named(form), original, folder, 300)
