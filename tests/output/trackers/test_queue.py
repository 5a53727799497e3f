"""A tracker that is slow, hangs or raises: the training neither waits for it nor hears of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from headway.core.findings import Finding, Severity
from headway.core.records import Column, Header, StepRecord
from headway.output.trackers import tracker_group
from headway.output.trackers.base import MetricsRow
from headway.output.trackers.tracker_group import QueuedTracker, TrackerGroup

FINDING = Finding("HD101", "nonfinite-loss", Severity.ERROR, 3, "loss is NaN")


class Listener:
    """Keeps what it is given, once the gate is open."""

    def __init__(self) -> None:
        self.rows: list[MetricsRow] = []
        self.findings: list[Finding] = []
        self.closed = 0
        self.gate = threading.Event()
        self.gate.set()

    def step(self, row: MetricsRow) -> None:
        self.gate.wait(30)
        self.rows.append(row)

    def finding(self, finding: Finding) -> None:
        self.gate.wait(30)
        self.findings.append(finding)

    def close(self) -> None:
        self.gate.wait(30)
        self.closed += 1


class Told(dict[str, str]):
    def __call__(self, topic: str, sentence: str) -> None:
        assert topic not in self, "told twice"
        self[topic] = sentence


def record(step: int) -> StepRecord:
    return StepRecord(0, step + 1, step, {"loss": float(step)}, {"param/grad_norm": Column([1.0])})


def close(queued: QueuedTracker, seconds: float = 20) -> None:
    TrackerGroup([queued]).close(seconds)


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener()
    yield one
    one.gate.set()


def test_everything_arrives_in_order_under_the_names_of_the_header(listener: Listener) -> None:
    told = Told()
    queued = QueuedTracker(listener, "mine", told)
    queued.record(Header("headway", axes={"param": ("w",)}))
    queued.record(record(0))
    queued.finding(FINDING)
    queued.record(Header("headway", axes={"param": ("other",)}))
    queued.record(record(1))
    close(queued)
    assert [row.step for row in listener.rows] == [0, 1]
    assert "grad_layer/w" in listener.rows[0].values
    assert "grad_layer/other" in listener.rows[1].values
    assert listener.findings == [FINDING]
    assert listener.closed == 1
    assert not told


def test_a_full_queue_drops_steps_counts_them_and_keeps_findings(listener: Listener) -> None:
    told = Told()
    listener.gate.clear()
    queued = QueuedTracker(listener, "mine", told, room=10)
    for step in range(500):
        queued.record(record(step))
    queued.finding(FINDING)
    assert listener.rows == [], "the training did not wait for the first of them"
    listener.gate.set()
    close(queued)
    assert 10 <= len(listener.rows) <= 11
    assert queued.dropped == 500 - len(listener.rows)
    assert listener.findings == [FINDING]
    assert list(told) == ["tracker-dropped-mine"]
    assert f"{queued.dropped} of 500 steps" in told["tracker-dropped-mine"]


def test_one_that_hangs_is_left_behind(listener: Listener) -> None:
    told = Told()
    listener.gate.clear()
    queued = QueuedTracker(listener, "mine", told)
    for step in range(3):
        queued.record(record(step))
    close(queued, 0.2)
    assert listener.rows == [], "it hangs still"
    assert "3 of 3 steps" in told["tracker-dropped-mine"]
    listener.gate.set()
    queued._thread.join(20)
    assert len(listener.rows) == 1, "what it was busy with was the last thing"


def test_one_that_hangs_only_at_the_end_is_told_of_too(listener: Listener) -> None:
    told = Told()
    queued = QueuedTracker(listener, "mine", told)
    listener.gate.clear()
    close(queued, 0.2)
    assert listener.closed == 0, "it hangs still"
    assert list(told) == ["tracker-hangs-mine"]


@pytest.mark.parametrize("error", [RuntimeError("no\nroute"), SystemExit(3), KeyboardInterrupt()])
def test_one_that_raises_is_given_up_with_one_notice(error: BaseException) -> None:
    class Raises(Listener):
        def step(self, row: MetricsRow) -> None:
            super().step(row)
            if row.step == 2:
                raise error

    told, raises = Told(), Raises()
    queued = QueuedTracker(raises, "mine", told)
    for step in range(20):
        queued.record(record(step))
        queued.finding(FINDING)
    close(queued)
    assert len(raises.rows) == 3
    assert raises.closed == 0
    assert list(told) == ["tracker-raised-mine"]
    assert type(error).__name__ in told["tracker-raised-mine"]
    assert "\n" not in told["tracker-raised-mine"]
    assert "after 2 steps" in told["tracker-raised-mine"]


def test_several_share_one_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of the test's own, which only waiting for one of them moves on."""
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    hanging = [Listener() for _ in range(4)]
    for one in hanging:
        one.gate.clear()
    told = Told()
    queues = [QueuedTracker(one, f"t{at}", told) for at, one in enumerate(hanging)]
    monkeypatch.setattr(tracker_group, "time", SimpleNamespace(monotonic=lambda: now))
    for queued in queues:
        monkeypatch.setattr(queued._thread, "join", wait)
    TrackerGroup(queues).close(0.3)
    assert now == pytest.approx(0.3)
    assert len(told) == len(hanging), "each was found to hang"
    for one in hanging:
        one.gate.set()


def test_closing_twice_does_nothing_more(listener: Listener) -> None:
    trackers = TrackerGroup([QueuedTracker(listener, "mine", Told())])
    trackers.close()
    trackers.close()
    assert listener.closed == 1


def test_the_child_of_a_fork_does_not_wait(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.gate.clear()
    queued = QueuedTracker(listener, "mine", Told())
    monkeypatch.setattr(tracker_group.os, "getpid", lambda: -1)
    monkeypatch.setattr(queued._thread, "join", pytest.fail)
    close(queued, 20)
    monkeypatch.undo()
    assert os.getpid() == queued._process


def test_one_that_computes_much_is_made_to_rest_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Computes(Listener):
        def step(self, row: MetricsRow) -> None:
            began = time.thread_time()
            while time.thread_time() - began < 0.1:
                pass
            super().step(row)

    computes = Computes()
    queued = QueuedTracker(computes, "mine", Told())
    rests: list[float] = []
    resting, wait = threading.Event(), queued._hurry.wait

    def rest(seconds: float) -> bool:
        rests.append(seconds)
        resting.set()
        return wait(seconds)

    monkeypatch.setattr(queued._hurry, "wait", rest)
    for step in range(10):
        queued.record(record(step))
    assert resting.wait(30)
    close(queued)
    assert len(computes.rows) == len(rests) == 10
    assert min(rests) >= 0.1 * (1 / tracker_group.MAX_TIME_SHARE - 1)
