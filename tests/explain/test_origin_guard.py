"""The whole way, on the set of origins: a guard's replay names the line, and its cure cures."""

from __future__ import annotations

import pytest
import torch
from explain.origin_set import SCENARIOS
from explain.origin_set.guarded import for_a_guard, guarded
from explain.origin_set.scenario import Case
from explain.origin_set.score import Marks, score, table, totals
from support.long_runs import only_at_length

from headway.explain.explanation import Explanation

BAR = 0.95
CURED = 0.9
INCURABLE = ("carried-state",)
"""No way of running the step again mends what an earlier one left behind."""
CHOSEN = [scenario for scenario in SCENARIOS if for_a_guard(scenario)]
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning"),
    pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled:UserWarning"),
]


class Told:
    """Explanations beside their marks."""

    def __init__(self, device: str, precision: torch.dtype | None) -> None:
        self.explanations: list[Explanation] = []
        self.marks: list[Marks] = score(self._explain, CHOSEN, device, precision)

    def _explain(self, case: Case) -> Explanation:
        explanation = guarded(case)
        self.explanations.append(explanation)
        return explanation


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(None, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, marks=[pytest.mark.slow, pytest.mark.nightly]),
        pytest.param(torch.float16, marks=[pytest.mark.slow, pytest.mark.long, only_at_length]),
    ],
    ids=str,
)
def told(request: pytest.FixtureRequest, device: str) -> Told:
    return Told(device, request.param)


def test_every_step_was_explained(told: Told) -> None:
    assert not [mark.error for mark in told.marks if mark.error]
    assert len(told.explanations) >= 40


@pytest.mark.parametrize("aspect", ["line", "op", "module", "kind", "phase", "component"])
def test_nearly_all_is_right(told: Told, aspect: str) -> None:
    right, of = totals(told.marks)[aspect]
    assert right >= BAR * of, table(told.marks)


def test_the_samples_are_right_wherever_they_can_be_told_apart(told: Told) -> None:
    right, of = totals(told.marks)["rows"]
    assert right == of, table(told.marks)


def test_no_mask_is_blamed(told: Told) -> None:
    assert totals(told.marks)["masks blamed"][0] == 0, table(told.marks)


def test_the_first_remedy_cures_nearly_always(told: Told) -> None:
    curable = [e for e in told.explanations if e.origin and e.origin.kind not in INCURABLE]
    cured = [e for e in curable if e.trials and e.trials[0].tried == "cured"]
    uncured = [e.headline for e in curable if e not in cured]
    assert len(cured) >= CURED * len(curable), uncured


def test_an_incident_takes_a_handful_of_passes(told: Told) -> None:
    assert max(explanation.passes for explanation in told.explanations) <= 12
