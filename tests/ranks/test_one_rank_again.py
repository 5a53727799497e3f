"""One rank runs a step again without the others: in a child process, or because no wrapper shows
that they train together. No collective reaches another rank."""

from __future__ import annotations

import sys

import pytest
from support.rank_alone import (
    answered_alone,
    averaged_by_hand,
    from_a_generator,
    level_line,
    noted,
)
from support.rank_processes import run_ranks

from headway.torch_adapters.process_groups.rank_agreement import read_notes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")


def test_gradients_that_the_loop_averages_itself() -> None:
    """Both ranks get NaN, and the other one learns where it comes from."""
    (here, losses), (there, same) = run_ranks(averaged_by_hand, 2)
    assert here == [(level_line(), "log", 1, ["cured"])]
    assert [(line, op, tried[:1]) for line, op, _, tried in there] == [
        (level_line(), "log", ["cured"])
    ]
    # A collective of a re-run would have met one of the next step.
    assert repr(losses) == repr(same)
    assert len(losses) == 4


def test_a_batch_that_is_gone() -> None:
    for told, losses in run_ranks(from_a_generator, 2):
        assert told == [(level_line(), "log", 1, ["cured"])]
        assert len(losses) == 4


def test_collectives_of_one_rank() -> None:
    alone, _ = run_ranks(answered_alone, 2)
    assert alone == [[2.0] * 3, [2.0] * 3, [2.0] * 3, [2.0] * 6, [0.0, 1.0, 2.0]]


def test_a_note_for_the_other_ranks() -> None:
    assert run_ranks(noted, 2) == [{1: "line 12"}, {}]
    assert read_notes("origin/7", seconds=0.0) == {}
