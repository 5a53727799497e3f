"""What to log next: read from the very sentences that checks give as their reasons."""

from __future__ import annotations

from headway.core.check import Needs
from headway.core.findings import NotRun
from headway.core.records import Header
from headway.core.signals import Signal
from headway.output.view import find_missing_signal

HEADER = Header(source="some log", signals={"loss": Signal()})


def not_run(*needs: Needs) -> list[NotRun]:
    reasons = [need.unmet(HEADER) for need in needs]
    return [NotRun(f"HD{number}", reason) for number, reason in enumerate(reasons) if reason]


def test_the_signal_that_unlocks_most():
    norm, either = Needs(signals=("grad_norm",)), Needs(any_of=("grad_norm", "lr"))
    assert find_missing_signal(not_run(norm, either, Needs(signals=("lr",)), norm)) == (
        "grad_norm",
        3,
    )


def test_two_missing_signals_are_not_had_by_logging_one():
    both = Needs(signals=("grad_norm", "lr"))
    assert find_missing_signal(not_run(both, both, both)) is None


def test_nothing_is_asked_for_a_single_check_or_of_a_run_that_cannot_have_it():
    assert find_missing_signal(not_run(Needs(signals=("lr",)))) is None
    assert find_missing_signal(not_run(*[Needs(signals=("loss_scale",))] * 5)) is None
    assert find_missing_signal([]) is None
