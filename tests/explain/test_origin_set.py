"""Every scenario of the set is what it says, as torch itself shows; none of headway is used."""

from __future__ import annotations

import pytest
import torch
from explain.origin_set import SCENARIOS, Scenario
from explain.origin_set.lines import deliberate_lines
from support.grids import every_nth

from headway.explain.origin.bad_call import KINDS

PRECISIONS = (None, torch.bfloat16, torch.float16)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning"),
    pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled:UserWarning"),
]

everywhere = pytest.mark.parametrize("device", DEVICES)
each = pytest.mark.parametrize(
    "scenario", every_nth(SCENARIOS, 8), ids=lambda scenario: scenario.name
)


@everywhere
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@each
def test_a_scenario_is_what_it_says(
    scenario: Scenario, precision: torch.dtype | None, device: str
) -> None:
    if (reason := scenario.excluded.get(str(precision).removeprefix("torch."))) is not None:
        pytest.skip(reason)
    case = scenario.case(device, precision)
    assert all(case.run(batch) for batch in case.healthy), "a healthy batch is bad"
    assert not case.run(case.bad), "the bad batch is not"
    if case.repair is not None:
        assert not case.healthy
        case.repair()
        assert case.run(case.bad), "the state was not all that was wrong"
    for row in scenario.rows or ():
        alone = case.with_rows(case.healthy[0], (row,), case.bad)
        assert not case.run(alone), f"sample {row} alone does no harm"
    if scenario.rows is not None:
        assert case.run(case.with_rows(case.bad, scenario.rows, case.healthy[0])), (
            "others are guilty"
        )


@everywhere
@each
def test_the_phase_is_where_it_shows_first(scenario: Scenario, device: str) -> None:
    """An origin in backward leaves the loss finite; one in forward does not."""
    case = scenario.case(device)
    loss, parts = case.forward(case.bad)
    assert bool(torch.isfinite(loss)) == (scenario.phase == "backward")
    if scenario.component is not None:
        assert scenario.component in parts
        bad = [name for name, part in parts.items() if not torch.isfinite(part)]
        assert bad == ([] if scenario.phase == "backward" else [scenario.component])


@everywhere
@each
def test_a_decoy_is_there_and_does_no_harm(scenario: Scenario, device: str) -> None:
    assert bool(deliberate_lines(scenario, scenario.case(device))) == scenario.decoy


@each
def test_the_guilty_line_is_marked(scenario: Scenario) -> None:
    file, line = scenario.line()
    assert f"{scenario.build.__module__.rsplit('.')[-1]}.py" in file
    assert line > 0


def test_the_set_holds_every_kind_and_decoys_in_about_half() -> None:
    assert {scenario.kind for scenario in SCENARIOS} == set(KINDS)
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS) >= 56
    share = sum(scenario.decoy for scenario in SCENARIOS) / len(SCENARIOS)
    assert 0.4 <= share <= 0.6
    assert {scenario.phase for scenario in SCENARIOS} == {"forward", "backward"}
