"""What is unusual about the batch that was in use when a run failed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.guard.endings.batch_history import BatchHistory


def unusual(before: list[Any], batch: Any) -> list[str | None]:
    history = BatchHistory()
    for item in [*before, batch]:
        first = item[0] if isinstance(item, (list, tuple)) else next(iter(item.values()))
        history.add(item, first.shape[0])
    return [item["unusual"] for item in history.describe(batch)]


def pair(rows: int, width: int = 10, dtype: torch.dtype = torch.int64) -> list[torch.Tensor]:
    return [torch.zeros(rows, width), torch.zeros(rows, dtype=dtype)]


def test_fewer_rows() -> None:
    said = unusual([pair(64)] * 16, pair(6))
    assert said == ["has 6 rows; all 16 before had 64"] * 2


def test_every_batch_is_counted() -> None:
    assert unusual([pair(64)] * 1000, pair(6))[0] == "has 6 rows; all 1000 before had 64"


def test_another_dtype() -> None:
    said = unusual([pair(4)] * 3, pair(4, dtype=torch.float32))
    assert said == [None, "is float32; before it was int64"]


def test_an_axis_outside_of_its_range() -> None:
    before = [pair(4, width) for width in (10, 12, 30)]
    assert unusual(before, pair(4, 512))[0] == "has size 512 on axis 1; before it was 10 to 30"
    assert unusual(before, pair(4, 20)) == [None, None]


def test_another_number_of_axes() -> None:
    assert unusual([[torch.zeros(4, 2)]] * 2, [torch.zeros(4, 2, 1)]) == [
        "has 3 axes; before it had 2"
    ]


def test_a_new_name() -> None:
    assert unusual([{"x": torch.zeros(2)}] * 2, {"x": torch.zeros(2), "mask": torch.zeros(2)}) == [
        None,
        "was in no batch before",
    ]


@pytest.mark.parametrize("before", [[], [pair(64)] * 3])
def test_nothing_unusual(before: list[Any]) -> None:
    assert unusual(before, pair(64)) == [None, None]


def test_the_current_batch_is_no_history() -> None:
    assert unusual([], pair(6)) == [None, None]


def test_the_singular() -> None:
    assert unusual([pair(64)], pair(1))[0] == "has 1 row; the one before had 64"
