"""The controller tries its strategies in order, waits if one asks for it, and reports why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headway.output.notices import Notices
from headway.policy import Policy
from headway.rerun import controller
from headway.rerun.bad_step import BadStep, MissedStep
from headway.rerun.controller import RerunController
from headway.rerun.protocol import (
    CAN,
    LATER,
    NOT_APPLICABLE,
    Readiness,
    Rerun,
    RerunCase,
    RerunMoment,
)
from headway.rerun.recorded_batch import RecordedBatch
from headway.torch_adapters.process_groups.rank_agreement import SingleProcess
from headway.torch_adapters.rng import RngState


class Calls:
    """Runs the controller's work without a safety net."""

    tripped = False

    def __call__(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    def spare(self, what: str, work: Callable[..., Any], *args: Any) -> bool:
        work(*args)
        return True


class Votes(SingleProcess):
    """One of several ranks, with an answer of the others."""

    def __init__(self, *, others_can: bool) -> None:
        super().__init__()
        self.others_can = others_can
        self.asked: list[bool] = []

    def all_agree(self, value: bool) -> bool:
        self.asked.append(value)
        return value and self.others_can


class Bench:
    """A controller with a bad step that waits, and strategies with fixed answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Readiness) -> None:
        self.tried: list[int] = []
        self.run: list[int] = []
        self.missed: list[MissedStep] = []
        self.votes = Votes(others_can=True)
        host: Any = SimpleNamespace(
            rerun_group=None, agreement=self.votes, latest=None, step=5, policy=Policy()
        )
        self.controller = RerunController(host, Policy(), Notices())
        self.controller.connect(Calls(), None)
        kinds = tuple(self._strategy(at, answer) for at, answer in enumerate(answers))
        monkeypatch.setattr(controller, "STRATEGIES", kinds)
        monkeypatch.setattr(self.controller.rerun_results, "report_missed", self.missed.append)
        monkeypatch.setattr(self.controller, "_investigate", self._investigate)
        monkeypatch.setattr(self.controller.tracer, "arm", lambda host: False)
        batches = [RecordedBatch([1.0])]
        bad = BadStep(5, "nonfinite", batches, RngState(), None, None)
        monkeypatch.setattr(self.controller, "_pending", bad)

    def _strategy(self, at: int, answer: Readiness) -> type[Rerun]:
        bench = self

        class Fixed(Rerun):
            def __init__(self, case: RerunCase) -> None:
                super().__init__(case)
                self.at = at

            def prepare(self) -> Readiness:
                bench.tried.append(at)
                return answer

            def run(self, batches: Sequence[Any]) -> Sequence[Any]:
                return ()

        return Fixed

    def _investigate(self, strategy: Any) -> Iterator[Any]:
        self.run.append(strategy.at)
        yield from ()


def test_the_first_that_can_runs_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, NOT_APPLICABLE, CAN, CAN)
    bench.controller.rerun(RerunMoment.NEXT_STEP)
    assert (bench.tried, bench.run, bench.missed) == ([0, 1], [1], [])


def test_one_that_asks_for_a_later_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, NOT_APPLICABLE, LATER, CAN)
    bench.controller.rerun(RerunMoment.STEP_COMPLETE)
    assert (bench.tried, bench.run, bench.missed) == ([0, 1], [], [])
    assert bench.controller.pending
    assert not bench.votes.asked


def test_the_first_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, NOT_APPLICABLE, Readiness(why_not="one"), Readiness(why_not="two"))
    bench.controller.rerun(RerunMoment.NEXT_STEP)
    assert [missed.why for missed in bench.missed] == ["one"]
    assert not bench.controller.pending


def test_a_rank_that_can_does_not_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, CAN)
    bench.votes.others_can = False
    bench.controller.rerun(RerunMoment.NEXT_STEP)
    assert bench.votes.asked == [True]
    assert not bench.run
    assert [missed.why for missed in bench.missed] == [controller.OTHER_RANK]


def test_a_batch_that_is_lost_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, CAN)
    monkeypatch.setattr(RecordedBatch, "lost", True)
    bench.controller.rerun(RerunMoment.NEXT_STEP)
    assert not bench.run
    assert [missed.why for missed in bench.missed] == [controller.BATCH_CHANGED]


def test_a_step_without_an_iteration_is_not_run_inside_of_its_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, CAN)
    bench.controller.rerun(RerunMoment.AFTER_STEP)
    assert not bench.tried
    assert bench.controller.pending
