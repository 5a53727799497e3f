"""The small manners of records."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from headway.core.check import Context
from headway.core.records import Column, Header, StepRecord, TensorRecord


def test_a_family_is_the_scalar_and_its_namesakes_of_further_optimizers() -> None:
    values = {"loss": 1.0, "loss#1": 2.0, "loss/box": 3.0, "optimizers": 2.0}
    assert list(StepRecord(0, 1, 1, values).family("loss")) == [("loss", 1.0), ("loss#1", 2.0)]


def test_a_family_may_lack_its_first_member() -> None:
    record = StepRecord(0, 1, 1, {"loss#1": 2.0, "optimizers": 2.0})
    assert list(record.family("loss")) == [("loss#1", 2.0)]


def test_a_full_column_counts_its_own_positions() -> None:
    assert list(Column([5.0, 6.0]).items()) == [(0, 5.0), (1, 6.0)]
    assert list(Column([5.0, 6.0], [3, 9]).items()) == [(3, 5.0), (9, 6.0)]


def test_a_tensor_counts_nan_and_inf_together() -> None:
    assert TensorRecord(0, 1, 1, "w", "weight", stats={"nan": 2, "inf": 3}).nonfinite == 5
    assert TensorRecord(0, 1, 1, "w", "weight").nonfinite == 0


def test_a_context_names_a_position_even_where_the_source_did_not() -> None:
    context = Context(Header("x", axes={"param": ("a", "b")}))
    assert [context.name("param", at) for at in (0, 1, 2)] == ["a", "b", "param[2]"]
    assert list(context.names("buffer")) == []


@pytest.mark.parametrize(
    ("record", "name"),
    [(Header("x"), "source"), (StepRecord(0, 1, 1), "seq"), (Column([]), "index")],
)
def test_records_cannot_be_changed(record: Any, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(record, name, 5)
