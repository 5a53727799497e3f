"""A very long log: what stands out is found wherever it is, and the answer is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.log_cases import diagnosed, told

from headway.logs import log_stream
from headway.logs.log_names import map_names
from headway.logs.log_table import Log, Table

ROWS = 200_000


def long_log(fault: str = "", at: int = 0, rows: int = ROWS) -> Log:
    random = np.random.default_rng(1)
    row = np.arange(rows)
    loss = (2 + 8 * np.exp(-20 * row / rows)) * (1 + 0.05 * random.standard_normal(rows))
    norm = np.exp(0.3 * random.standard_normal(rows))
    rate = 1e-3 * (1 - row / rows) + 1e-6
    after = np.arange(rows - at)
    if fault == "spike":
        loss[at] *= 8
    elif fault == "nan":
        loss[at:], norm[at:] = np.nan, np.nan
    elif fault == "once":
        loss[at] = np.nan
    elif fault == "divergence":
        loss[at:] *= np.minimum(1 + after / 20, 20)
    elif fault == "oscillation":
        loss[at:] = np.where(after % 2, 3.0, 22.0) * (1 + 0.02 * random.standard_normal(len(after)))
    elif fault == "gradient":
        norm[at] *= 500
    table = Table()
    columns = {"loss": loss.tolist(), "grad_norm": norm.tolist(), "lr": rate.tolist()}
    table.extend(range(1, rows + 1), columns)
    return Log("jsonl", Path("log"), table)


@pytest.mark.parametrize("at", [9_000, 171_234])
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("spike", "HD103 info"),
        ("nan", "HD101 error"),
        ("once", "HD101 warning"),
        ("divergence", "HD104 error"),
        ("oscillation", "HD115 error"),
        ("gradient", "HD207 info"),
    ],
)
def test_a_fault_is_found_wherever_it_is(fault: str, code: str, at: int) -> None:
    said = [line.split(" @") for line in told(diagnosed(long_log(fault, at)), "info")]
    found = [int(step) for line, step in said if line == code]
    assert found, said
    assert abs(found[0] - (at + 1)) <= (15 if fault == "divergence" else 2)


def test_a_healthy_one_is_left_alone_and_says_how_much_was_looked_at() -> None:
    case = long_log()
    assert told(diagnosed(case), "info") == []
    assert any(f"of {ROWS} rows" in note for note in case.notes)


def test_the_rows_are_bounded_in_order_and_each_once() -> None:
    case = long_log("nan", 100_000)
    kept = log_stream.select_rows(case.table, map_names(case.table.series))
    assert kept is not None
    assert 5_000 < len(kept) < 25_000
    assert (np.diff(kept) > 0).all()
    assert kept[0] == 0
    assert kept[-1] == ROWS - 1


def test_counts_in_a_gap_are_not_lost() -> None:
    case = long_log()
    counts = np.zeros(ROWS)
    counts[[5, 60_000, 60_001]] = 2
    case.table.series["number of nan iterations"] = log_stream.Series()
    case.table.series["number of nan iterations"].rows.extend(range(ROWS))
    case.table.series["number of nan iterations"].values.extend(counts.tolist())
    report = diagnosed(case)
    masked = [item for item in report.findings if item.code == "HD102"]
    assert [(item.step, item.evidence["steps"]) for item in masked] == [(6, 6.0)]


def test_a_short_log_is_looked_at_whole() -> None:
    case = long_log(rows=5000)
    assert log_stream.select_rows(case.table, map_names(case.table.series)) is None
