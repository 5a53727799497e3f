"""From a step's record to the keys that trackers show."""

from __future__ import annotations

import math

from headway.core.records import Column, StepRecord
from headway.output.trackers.tracker_group import make_metrics_row

NAMES = ("a.weight", "a.bias", "b.weight")


def values(columns: dict[str, Column] | None = None, held: bool = False, **given: float) -> dict:
    return dict(
        make_metrics_row(StepRecord(0, 1, 7, given, columns or {}, held=held), NAMES).values
    )


def test_the_numbers_have_the_names_people_look_for() -> None:
    record = StepRecord(
        0,
        1,
        7,
        {
            "loss": 2.0,
            "loss/box": 1.5,
            "grad_norm": 3.0,
            "lr": 0.1,
            "loss_scale": 1024.0,
            "clip_coef": 0.5,
            "host_rss_bytes": 5.0,
            "device_allocated_bytes": 6.0,
            "step_time_s": 0.2,
        },
    )
    row = make_metrics_row(record, NAMES)
    assert row.step == 7
    assert row.values == {
        "loss": 2.0,
        "loss/box": 1.5,
        "grad/global_norm": 3.0,
        "grad/has_nan": 0.0,
        "grad/has_inf": 0.0,
        "lr": 0.1,
        "loss_scale": 1024.0,
        "clip_coef": 0.5,
        "memory/host_rss_bytes": 5.0,
        "memory/device_allocated_bytes": 6.0,
        "headway/step_time_s": 0.2,
        "headway/held": 0.0,
    }


def test_a_column_gives_each_parameter_its_key_and_the_extremes() -> None:
    found = values({"param/grad_norm": Column([3.0, 1.0], [0, 2])}, grad_norm=3.2)
    assert found["grad_layer/a.weight"] == 3.0
    assert found["grad_layer/b.weight"] == 1.0
    assert "grad_layer/a.bias" not in found
    assert (found["grad/max_norm"], found["grad/min_norm"]) == (3.0, 1.0)


def test_without_a_column_there_are_no_extremes() -> None:
    assert "grad/max_norm" not in values(grad_norm=1.0)
    assert "grad/max_norm" not in values({"param/grad_norm": Column([])}, grad_norm=1.0)


def test_nan_and_infinity_are_told_apart() -> None:
    found = values({"param/grad_norm": Column([math.nan, 1.0, math.inf])}, grad_norm=math.nan)
    assert (found["grad/has_nan"], found["grad/has_inf"]) == (1.0, 1.0)
    assert math.isnan(found["grad/max_norm"])
    assert math.isnan(found["grad/min_norm"])
    found = values(grad_norm=math.inf)
    assert (found["grad/has_nan"], found["grad/has_inf"]) == (0.0, 1.0)


def test_a_step_without_gradients_says_nothing_of_them() -> None:
    assert values(loss=1.0) == {"loss": 1.0, "headway/held": 0.0}
    assert values(held=True, loss=1.0)["headway/held"] == 1.0


def test_a_further_optimizer_keeps_its_number() -> None:
    found = values(optimizers=2.0, **{"grad_norm": 1.0, "grad_norm#1": math.nan, "loss#1": 3.0})
    assert math.isnan(found["grad/global_norm#1"])
    assert found["loss#1"] == 3.0
    assert found["grad/has_nan"] == 1.0


def test_a_position_without_a_name_is_its_number() -> None:
    found = values({"param/grad_norm": Column([1.0], [9]), "group/lr": Column([0.1, 0.2])})
    assert found["grad_layer/9"] == 1.0
    assert (found["lr/group0"], found["lr/group1"]) == (0.1, 0.2)
