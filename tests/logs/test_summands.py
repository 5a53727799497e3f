"""Columns that add up to the loss are its parts, whatever they are called."""

from __future__ import annotations

from headway.logs.log_names import map_names
from headway.logs.log_table import Table
from headway.logs.signal_inference import find_loss_parts


def parts(*rows: dict[str, float], count: int = 12) -> set[str]:
    table = Table()
    for at in range(count):
        row = rows[at % len(rows)]
        table.add(at, {name: round(value * (1 + at / 10), 4) for name, value in row.items()})
    return {item.name for item in find_loss_parts(table, map_names(table.series)).values()}


def test_two_of_three_columns_are_parts() -> None:
    row = {"loss": 1.2, "recon": 0.8, "reg": 0.4, "psnr": 21.0}
    assert parts(row) == {"loss/recon", "loss/reg"}


def test_a_part_that_has_a_name_stays_what_it_is() -> None:
    assert parts({"loss": 1.2, "kl_loss": 0.8, "nll": 0.4}) == {"loss/nll"}


def test_what_is_too_small_to_matter_is_in_no_sum() -> None:
    assert parts({"loss": 1.2, "ce": 1.2, "tiny": 0.0001}) == set()


def test_a_column_of_zeros_is_in_no_sum() -> None:
    assert parts({"loss": 1.2, "ce": 1.2, "skipped": 0.0}) == set()


def test_few_rows_may_agree_by_chance() -> None:
    assert parts({"loss": 1.2, "recon": 0.8, "reg": 0.4}, count=5) == set()


def test_a_sum_that_fails_often_is_none() -> None:
    right = {"loss": 1.2, "recon": 0.8, "reg": 0.4}
    assert parts(right, right | {"reg": 0.5}) == set()
