"""The held-out set: plain training loops under a guard, and what it must say about each."""

from __future__ import annotations

from pathlib import Path

import pytest
from explain.heldout import EXPECTED, HEALTHY
from explain.heldout.score import misses
from support.grids import every_nth

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.lu_solve is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use `fork\\(\\)`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork\\(\\):DeprecationWarning"),
]


@pytest.mark.parametrize("name", every_nth(EXPECTED, 3))
def test_the_bad_step_is_explained(name: str, tmp_path: Path) -> None:
    script, expected = EXPECTED[name]
    assert misses(script, expected, str(tmp_path / "run")) == []


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_incident(name: str, tmp_path: Path) -> None:
    guard = HEALTHY[name](str(tmp_path / "run"))
    assert guard.explanations == []
    assert guard.findings == []


def test_half_of_the_scripts_hold_infinities_that_are_meant() -> None:
    """Without such decoys, whoever blames the first infinity would score as well."""
    from inspect import getsource

    decoys = [name for name, (script, _) in EXPECTED.items() if _has_decoy(getsource(script))]
    assert len(decoys) >= 0.4 * len(EXPECTED)


def _has_decoy(source: str) -> bool:
    return any(word in source for word in ("causal_prior", "math.inf", "-inf", "causal("))
