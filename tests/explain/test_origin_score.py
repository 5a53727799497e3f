"""The origins of the set are told right: by line, op, module, kind and samples, no mask blamed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from explain.origin_set import SCENARIOS
from explain.origin_set.scenario import Case, Scenario
from explain.origin_set.score import Marks, score, table, totals
from explain.origin_set.traced import traced_origins

from headway.explain.explanation import Origin
from headway.torch_adapters.frames import Location

BAR = 0.95
PRECISIONS = (None, torch.bfloat16, torch.float16)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning"),
    pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled:UserWarning"),
]


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=PRECISIONS, ids=str)
def marks(request: pytest.FixtureRequest, device: str) -> list[Marks]:
    return score(traced_origins, SCENARIOS, device, request.param)


@pytest.mark.parametrize("aspect", ["line", "module", "kind", "phase", "component"])
def test_nearly_all_is_right(marks: list[Marks], aspect: str) -> None:
    right, of = totals(marks)[aspect]
    assert right >= BAR * of, table(marks)


def test_the_op_is_right_nearly_always(marks: list[Marks]) -> None:
    right, of = totals(marks)["op"]
    assert right >= BAR * of, table(marks)


def test_the_samples_are_right_wherever_they_can_be_told_apart(marks: list[Marks]) -> None:
    right, of = totals(marks)["rows"]
    assert right == of, table(marks)


def test_no_mask_is_blamed(marks: list[Marks]) -> None:
    assert totals(marks)["masks blamed"][0] == 0, table(marks)


def test_every_cause_has_words_for_it(marks: list[Marks]) -> None:
    assert all(mark.origin is not None and mark.origin.cause for mark in marks)


def _truth(scenario: Scenario) -> Origin:
    file, number = scenario.line()
    return Origin(
        scenario.kind,
        "",
        scenario.phase,
        scenario.ops[0],
        module=scenario.modules[0],
        place=Location(file, number),
        rows=scenario.rows or (),
        component=scenario.component,
    )


def test_the_truth_scores_full_marks_and_anything_else_does_not() -> None:
    scenario = next(each for each in SCENARIOS if each.name == "no-overlap")
    truth = _truth(scenario)
    assert truth.place is not None
    mask = replace(truth.place, line=truth.place.line - 3)  # where the void is masked
    wrong = replace(truth, kind="unknown", op="add", module="x", rows=(1,), place=mask)

    def say(*origins: Origin) -> Marks:
        return score(lambda case: origins, [scenario])[0]

    assert {given for given in say(truth).right.values() if given is not None} == {True}
    assert not say(truth).blamed
    assert [say(wrong).right[name] for name in ("line", "op", "module", "kind", "rows")] == (
        [False] * 5
    )
    assert say(wrong).blamed
    assert say(truth, wrong).blamed
    assert not any(say().right.values())


def test_an_explainer_that_raises_is_wrong_and_no_more() -> None:
    def raising(case: Case) -> tuple[Origin, ...]:
        raise RuntimeError("no idea")

    marks = score(raising, SCENARIOS[:2])
    assert totals(marks)["line"] == (0, 2)
    assert "no idea" in table(marks)
