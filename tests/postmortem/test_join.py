"""Several logs of one run become one."""

from __future__ import annotations

import math
from pathlib import Path

from headway.logs.join_logs import join_logs, same_run
from headway.logs.log_stream import LogStream
from headway.logs.log_table import Log, LogEvent, Table, Unit


def a_log(kind: str, rows: dict[int, dict[str, float]], *, unit: Unit = "step") -> Log:
    table = Table()
    for step, values in rows.items():
        table.add(step, values)
    return Log(kind, Path(f"{kind}.log"), table, unit, lines=len(rows), used=len(rows))


def told(log: Log) -> dict[int, dict[str, float]]:
    return {
        record.step: dict(record.values)
        for record in LogStream(log).records()
        if hasattr(record, "values")
    }


def losses(first: int, last: int, every: int = 10) -> dict[int, dict[str, float]]:
    return {step: {"loss": 3.0 - step / 1000} for step in range(first, last + 1, every)}


def test_one_log_stays_as_it_is() -> None:
    log = a_log("jsonl", losses(10, 50))
    assert join_logs([log]) is log


def test_the_console_tells_what_came_after_the_last_save() -> None:
    state = a_log("hf-trainer", losses(10, 100))
    console = a_log("hf-console", {**losses(10, 120), 130: {"loss": math.nan}})
    joined = told(join_logs([console, state]))
    assert list(joined) == [*range(10, 131, 10)]
    assert joined[50]["loss"] == 2.95, "the state is the more exact one"
    assert math.isnan(joined[130]["loss"])


def test_a_signal_the_base_lacks_is_added_at_its_steps_and_between_them() -> None:
    state = a_log("hf-trainer", losses(10, 50))
    memory = a_log("jsonl", {step: {"grad_norm": float(step)} for step in range(5, 51, 5)})
    joined = told(join_logs([state, memory]))
    assert joined[10] == {"loss": 2.99, "grad_norm": 10.0}
    assert joined[15] == {"grad_norm": 15.0}


def test_rows_without_steps_are_laid_beside_those_that_say_the_same() -> None:
    state = a_log("hf-trainer", losses(10, 100))
    rows = list(losses(10, 120).values())
    rows.append({"loss": math.nan})
    console = a_log("console", dict(enumerate(rows)), unit="row")
    joined = told(join_logs([state, console]))
    assert list(joined) == [*range(10, 131, 10)]
    assert math.isnan(joined[130]["loss"])


def test_rows_that_say_something_else_are_left_out() -> None:
    state = a_log("hf-trainer", losses(10, 100))
    other = a_log("console", {row: {"loss": 50.0 + row} for row in range(12)}, unit="row")
    assert list(told(join_logs([state, other]))) == [*range(10, 101, 10)]


def test_a_restarted_base_keeps_its_order() -> None:
    base = a_log("jsonl", {})
    for step in [*range(10, 60, 10), *range(30, 80, 10)]:
        base.table.add(step, {"loss": 1.0})
    console = a_log("text", {step: {"loss": 1.0, "lr": 0.1} for step in range(10, 101, 10)})
    joined = join_logs([base, console])
    assert list(joined.table.steps) == [10, 20, 30, 40, 50, 30, 40, 50, 60, 70, 80, 90, 100]


def test_happenings_of_the_console_come_along() -> None:
    state = a_log("hf-trainer", losses(10, 50))
    console = a_log("console", losses(10, 70))
    console.events.append(LogEvent(7, "exception", {"error": "CUDA out of memory"}))
    joined = join_logs([state, console])
    assert [(item.row, item.kind) for item in joined.events] == [(7, "exception")]


def test_whether_two_logs_are_of_one_run() -> None:
    one = a_log("jsonl", losses(10, 100))
    assert same_run(one, a_log("csv", losses(10, 60))) is True
    other = {step: {"loss": 9.0} for step in range(10, 101, 10)}
    assert same_run(one, a_log("csv", other)) is False
    assert same_run(one, a_log("csv", losses(505, 605))) is None


def test_two_runs_of_one_seed_are_two_runs_once_one_breaks() -> None:
    whole, broken = losses(10, 100), losses(10, 100)
    broken[80] = {"loss": math.nan}
    assert same_run(a_log("jsonl", whole), a_log("jsonl", broken)) is False
    assert same_run(a_log("jsonl", whole), a_log("jsonl", losses(10, 50))) is True


def test_another_seed_is_another_run_and_a_moving_mean_may_be_the_same() -> None:
    one = a_log("jsonl", losses(10, 100))
    near = {step: {"loss": value["loss"] * 1.03} for step, value in losses(10, 100).items()}
    assert same_run(one, a_log("jsonl", near)) is False
    assert same_run(one, a_log("text", near)) is None, "the place has to tell"
