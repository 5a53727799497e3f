"""A guard with trackers: what they are shown, and that the training does not notice them."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tracked_runs import INF_STEP, NAN_STEP, STEPS, assert_same_rows, recorded, train
from support.trainings import assert_same, make_net

import headway
from headway.core.findings import Finding
from headway.guard.guard_inputs import attach_trackers
from headway.integrations import deepspeed
from headway.output.trackers import tracker_group
from headway.output.trackers.base import MetricsRow

FINDINGS = {"HD101", "HD201"}


class Keeps:
    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.found: list[Finding] = []
        self.closed = False

    def step(self, row: MetricsRow) -> None:
        self.rows[row.step] = row.values

    def finding(self, finding: Finding) -> None:
        self.found.append(finding)

    def close(self) -> None:
        self.closed = True


class Sleeps(Keeps):
    """A minute a step, unless it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.wake = threading.Event()
        self.slept = 0

    def step(self, row: MetricsRow) -> None:
        self.slept += not self.wake.wait(60)


class Raises(Keeps):
    def step(self, row: MetricsRow) -> None:
        if row.step == 5:
            raise ConnectionError("the tracker's server is gone")


@pytest.fixture
def short_end(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(tracker_group, "CLOSE_SECONDS", 0.3)
    return 0.3


def test_a_tracker_is_shown_what_the_run_directory_holds(tmp_path: Path) -> None:
    keeps = Keeps()
    train([keeps], tmp_path)
    assert_same_rows(keeps.rows, recorded(tmp_path))
    assert {item.code for item in keeps.found} >= FINDINGS
    assert keeps.closed


@pytest.mark.parametrize("kind", [Keeps, Sleeps, Raises])
def test_the_training_is_bit_for_bit_the_same(kind: type[Keeps], short_end: float) -> None:
    torch.manual_seed(3)
    plain = train([])
    torch.manual_seed(3)
    tracker = kind()
    tracked = train([tracker])
    assert len(plain[0]) == STEPS
    assert_same(list(plain), list(tracked))
    if isinstance(tracker, Sleeps):
        tracker.wake.set()


def test_fifty_steps_do_not_wait_for_one_that_sleeps(
    short_end: float, caplog: pytest.LogCaptureFixture
) -> None:
    sleeps = Sleeps()
    train([sleeps], steps=50)
    assert sleeps.slept == 0, "not even one of its naps was waited for"
    sleeps.wake.set()
    told = [item.getMessage() for item in caplog.records if "Sleeps" in item.getMessage()]
    assert told == [
        "headway: the tracker Sleeps is too slow: 50 of 50 steps were dropped so that "
        "training did not wait"
    ]


def test_one_that_raises_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    keeps = Keeps()
    train([Raises(), keeps])
    told = [item.getMessage() for item in caplog.records if "Raises" in item.getMessage()]
    assert len(told) == 1
    assert "failed (ConnectionError: the tracker's server is gone) after 5 steps" in told[0]
    assert len(keeps.rows) == STEPS, "the others are not bothered"


def test_logging_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headway.steps"):
        train(["logging"], tmp_path)
    rows = {
        item.headway["step"]: {k: v for k, v in item.headway.items() if k != "step"}
        for item in caplog.records
        if item.name == "headway.steps" and "step" in item.headway and "loss" in item.headway
    }
    assert_same_rows(rows, recorded(tmp_path))
    assert rows[INF_STEP]["grad/has_inf"] or rows[INF_STEP]["grad/has_nan"]
    assert rows[NAN_STEP]["grad/has_nan"] == 1


def test_an_unknown_tracker_is_refused_before_anything_is_watched() -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(headway.HeadwayError, match="unknown tracker"):
        headway.Guard(model, optimizer, trackers=["neptun"])
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(("rank", "shown"), [(0, 1), (1, 0)])
def test_of_ranks_that_write_one_run_the_first_shows_it(rank: int, shown: int) -> None:
    class Ranks:
        def __init__(self) -> None:
            self.rank = rank

    class Recorder:
        writer = None

        def __init__(self) -> None:
            self.listeners: list[Any] = []
            self.finding_listeners: list[Any] = []

    recorder = Recorder()
    trackers = attach_trackers([Keeps()], recorder, Ranks(), _Silent())  # type: ignore[arg-type]
    assert len(recorder.listeners) == len(recorder.finding_listeners) == shown
    trackers.close()


class _Silent:
    def once(self, topic: str, text: str) -> None: ...


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import torch
from support.trainings import batches, make_net, squared_error
import headway

class Prints:
    def step(self, row):
        print("step", row.step, flush=True)
    def finding(self, finding): ...
    def close(self):
        print("closed", flush=True)

model = make_net()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
guard = headway.Guard(model, optimizer, trackers=[Prints()])
for batch in guard(batches(5)):
    squared_error(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_guard_that_nobody_closed_still_shows_its_last_steps() -> None:
    program = PROGRAM.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*(f"step {at}" for at in range(5)), "closed"]


class _Engine:
    """As much of a DeepSpeed engine as is looked at before its first step."""

    module = optimizer = None

    def __init__(self, rank: int) -> None:
        self.global_rank = rank

    def backward(self, loss: Any) -> None: ...
    def step(self) -> None: ...
    def get_global_grad_norm(self) -> None: ...
    def zero_optimization_stage(self) -> int:
        return 0


@pytest.mark.parametrize("rank", [0, 1])
def test_under_deepspeed_the_first_rank_shows_the_run(rank: int) -> None:
    keeps = Keeps()
    with deepspeed.watch(_Engine(rank), trackers=[keeps]):
        pass
    assert keeps.closed == (rank == 0)
