"""A long run is looked at as a whole first; one that goes on is then followed record by record."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from support.report_runs import sick_records, write

pytest.importorskip("starlette")

from headway.web import own_run, run_index
from headway.web.access import ServedFolder
from headway.web.own_run import OwnRun
from headway.web.run_index import RunIndex


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnRun:
    monkeypatch.setattr(own_run, "LONG_RUN_BYTES", 1000)
    found = OwnRun(ServedFolder(tmp_path), write(tmp_path / "long", sick_records()))
    found.glance()
    return found


def codes(run: OwnRun) -> set[str]:
    report = run.report()
    return {item.code for item in report.findings} if report else set()


def test_one_that_goes_on_is_followed_all_the_same(run: OwnRun) -> None:
    assert run.state() == "running"
    assert run.long()
    assert codes(run) == set()
    run.look()
    assert "HD101" in codes(run)
    assert not run.long()
    assert run.progress()[1] == 0.0
    while run.check(1.0):
        pass
    assert run.progress()[1] == 1.0
    assert "HD101" in codes(run)


def test_one_that_rests_is_done(run: OwnRun) -> None:
    for name in ("steps.rank0.jsonl", "events.jsonl"):
        os.utime(run.path / name, (time.time() - 1000,) * 2)
    run._seen = (0, 0)
    run.glance()
    assert run.state() == "silent"
    run.look()
    assert run.progress()[1] == 1.0
    assert "HD101" in codes(run)
    assert run.check(0.1) == 0


def test_the_run_that_was_opened_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_run, "LONG_RUN_BYTES", 1000)
    for name in "abc":
        write(tmp_path / name, sick_records())
    index = RunIndex(ServedFolder(tmp_path), lambda _: None)
    index.search()
    wanted = next(run for run in index.all() if run.name == "b")
    wanted.touch()
    first = index._next_to_check(0.0, set())
    assert first is wanted
    later = {wanted.id}
    while (run := index._next_to_check(0.0, later)) is not None:
        later.add(run.id)
    assert len(later) == 3


def test_a_check_that_takes_long_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_run, "LONG_RUN_BYTES", 1000)
    monkeypatch.setattr(run_index, "STARTUP_SECONDS", 0.0)
    began, released = threading.Event(), threading.Event()
    monkeypatch.setattr(OwnRun, "look", lambda run: (began.set(), released.wait(10)))
    write(tmp_path / "a", sick_records())
    index = RunIndex(ServedFolder(tmp_path), lambda _: None)
    index.start()
    assert began.wait(10)
    index.stop()
    assert not index.wait(0.01)
    released.set()
    assert index.wait(10)


def test_readers_wait_for_answers_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "MAX_GIVEN_WAY_SECONDS", 30.0)
    answers = run_index.AnswersFirst()
    answers.give_way()  # nobody asks
    passed = threading.Event()
    reader = threading.Thread(target=lambda: (answers.give_way(), passed.set()), daemon=True)
    with answers:
        reader.start()
        assert not passed.wait(0.2)
        assert answers.pending
    assert passed.wait(20)
    monkeypatch.setattr(run_index, "MAX_GIVEN_WAY_SECONDS", 0.01)
    with answers:
        answers.give_way()


def test_a_reader_lets_go_of_a_run_that_a_page_asks_for(run: OwnRun) -> None:
    run.prepare()
    asked = []
    assert run.draw(60.0, lambda: bool(asked.append(1)) or True)
    assert len(asked) == 1
    assert run.progress()[0] < 1.0 or not run.draw(60.0)
    assert run.check(60.0, lambda: True) == 16


def test_several_runs_are_drawn_from_samples_first(run: OwnRun) -> None:
    data = run.charts(None, None, beside=2)
    assert data is not None
    assert "loss" in data.series
    assert data.maps == {}
    again = run.charts(None, None, maps=True)
    assert again is not None
    assert again.maps
