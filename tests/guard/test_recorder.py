"""Good steps are passed on together; nothing else waits, and nothing is lost or reordered."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from headway.config import Settings
from headway.core.records import Record, StepRecord
from headway.guard import recorder as recording
from headway.guard.recorder import BLOCK_STEPS, Recorder
from headway.output.notices import Notices
from headway.policy import Policy


def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(recording, "BLOCK_SECONDS", math.inf)
    made = Recorder(
        settings=Settings(), policy=Policy(), run_dir=folder, facts={}, notices=Notices()
    )
    good(made, 0)  # its signals are new: the header and this step are passed on
    return made


def good(recorder: Recorder, step: int, loss: float = 1.0) -> None:
    recorder.step(step, {"loss": loss, "grad_norm": 1.0}, {}, held=False)


def on_disk(recorder: Recorder, folder: Path) -> list[int]:
    assert recorder.writer is not None
    recorder.writer.flush()  # what the writer has: nothing that still waits
    lines = (folder / "steps.rank0.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_good_steps_wait_for_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = make(tmp_path, monkeypatch)
    for step in range(1, BLOCK_STEPS):
        good(recorder, step)
    assert on_disk(recorder, tmp_path) == [0]
    good(recorder, BLOCK_STEPS)
    assert on_disk(recorder, tmp_path) == list(range(BLOCK_STEPS + 1))


def test_a_slow_step_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = make(tmp_path, monkeypatch)
    monkeypatch.setattr(recording, "BLOCK_SECONDS", -1.0)
    good(recorder, 1)
    assert on_disk(recorder, tmp_path) == [0, 1]


@pytest.mark.parametrize("how", ["held", "nan", "event", "findings", "flush", "state", "end"])
def test_what_ends_the_waiting(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = make(tmp_path, monkeypatch)
    good(recorder, 1)
    good(recorder, 2)
    last = 2
    if how == "held":
        recorder.step(3, {"loss": 1.0, "grad_norm": 9.0}, {}, held=True)
        last = 3
    elif how == "nan":
        good(recorder, 3, math.nan)
        last = 3
    elif how == "event":
        recorder.event(3, "note", {})
    elif how == "findings":
        assert not recorder.engine.findings
    elif how == "flush":
        recorder.flush()
    elif how == "state":
        recorder.state_dict()
    else:
        recorder.end(3)
    assert on_disk(recorder, tmp_path) == list(range(last + 1))


def test_the_checks_see_every_step_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make(tmp_path, monkeypatch)
    seen: list[int] = []
    feed = recorder._engine.feed

    def note(record: Record) -> object:
        if isinstance(record, StepRecord):
            seen.append(record.step)
        return feed(record)

    monkeypatch.setattr(recorder._engine, "feed", note)
    for step in range(1, 40):
        good(recorder, step, math.inf if step == 21 else 1.0)
    recorder.close(40)
    assert seen == list(range(1, 40))
    assert [item.code for item in recorder.engine.findings] == ["HD101"]


def test_who_listens_gets_each_step_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make(tmp_path, monkeypatch)
    heard: list[Record] = []
    recorder.listeners.append(heard.append)
    good(recorder, 1)
    assert len(heard) == 1
