"""A run in a line and three sentences, its incidents by cause, and the steps around one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from support.report_runs import BAD, incident, only_a_loss, sick_records, sick_run, well_run, write

import headway
from headway.core.findings import Finding, Severity, Where
from headway.core.records import EventRecord, Header, Record, StepRecord
from headway.core.signals import Signal
from headway.output.run_story import (
    _what,
    find_incident,
    group_incidents,
    headline,
    run_length,
    say_duration,
    steps_around,
    tell_incident,
    tell_story,
)
from headway.rundir.live_charts import read_charts


def ended_well(folder: Path) -> Path:
    """The sick run, which went on to its end."""
    end = EventRecord(0, 1000, 120, "end", {"steps": 120, "status": "finished"})
    records: list[Record] = [*sick_records(), end]
    return write(folder, records)


def test_the_line_says_what_happened(tmp_path: Path) -> None:
    run = ended_well(tmp_path / "run")
    report, data = headway.diagnose(run), read_charts(run)
    assert headline(report, data) == "NaN in sample 1043, 1 update skipped, run finished"
    assert headline(report, data, running=True).endswith("still running")
    first, second, third = tell_story(report, data)
    assert first.startswith("HD101 nonfinite-loss at step 83")
    assert second == "The guard skipped 1 update, and the run finished."
    assert third == "Tested on the failing step and cured: At losses.py:178 clamp `p`."
    assert run_length(data) == "120 steps"


def test_without_a_finding_the_line_is_the_verdict(tmp_path: Path) -> None:
    report = well_run(tmp_path / "run")
    data = read_charts(tmp_path / "run")
    assert headline(report, data) == "Few checks ran"
    assert len(tell_story(report, data)) == 1


def test_a_log_without_an_end_is_not_called_finished(tmp_path: Path) -> None:
    report = sick_run(tmp_path / "run")
    assert "finished" not in headline(report, read_charts(tmp_path / "run"))
    plain = only_a_loss(tmp_path / "log")
    assert "finished" not in headline(plain, read_charts(tmp_path / "run"))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.48, "0.48 s"), (75, "75 s"), (600, "10 min"), (12_000, "3 h 20 min"), (190_800, "2 d 5 h")],
)
def test_durations(seconds: float, said: str) -> None:
    assert say_duration(seconds) == said


def test_incidents_with_one_cause_are_one_entry() -> None:
    events = [EventRecord(0, step, step, "incident", incident(step)) for step in (5, 9, 12)]
    other = incident(20)
    other["origins"][0]["place"]["line"] = 3
    events.append(EventRecord(0, 20, 20, "incident", other))
    groups = group_incidents(events)
    assert [group.number for group in groups] == [0, 3]
    assert [event.step for event in groups[0].repeats] == [9, 12]
    # Without a place nothing shows that two are the same.
    bare = [EventRecord(0, step, step, "incident", {"step": step}) for step in (1, 2)]
    assert len(group_incidents(bare)) == 2


def test_an_incident_is_told_in_three_sentences(tmp_path: Path) -> None:
    run = ended_well(tmp_path / "run")
    report, data = headway.diagnose(run), read_charts(run)
    story = tell_incident(report.causes, data, group_incidents(data.incidents)[0])
    assert story.title == "NaN in sample 1043"
    what, done, fix = story.sentences
    assert "losses.py:178" in what
    assert done.startswith("The guard skipped the update; the loss was ")
    assert "at step 82 and " in done
    assert done.endswith(" at step 84.")
    assert fix == "Tested on this step and cured: At losses.py:178 clamp `p`."
    assert [item.cured for item in story.fixes] == [True, False]
    assert find_incident(report.causes[0].root, data.incidents) == 0


def test_an_origin_without_a_sample_is_named_by_its_line() -> None:
    where = Where(file="/home/someone/losses.py", line=178)
    root = Finding("HD101", "nonfinite-loss", Severity.ERROR, 83, "loss is Inf", where)
    told = replace(root, evidence={"why": "log of 0"})
    assert _what(told) == "Inf at losses.py:178 in step 83"
    assert _what(told, with_step=False) == "Inf at losses.py:178"
    assert _what(root) == "Non-finite loss at step 83"  # nobody knows that it began in this line


def test_a_bad_step_next_to_another_is_listed(tmp_path: Path) -> None:
    stream: list[Record] = [Header("headway", {"loss": Signal()}, {}, {})]
    for step in range(10):
        value = math.nan if step in (5, 6) else float(step)
        stream.append(StepRecord(0, step + 1, step, {"loss": value}))
    data = read_charts(write(tmp_path / "run", stream))
    rows = steps_around(data, 5)
    assert [row[:2] for row in rows[2:6]] == [["4", "4"], ["5", "NaN"], ["6", "NaN"], ["7", "7"]]


def test_the_steps_around(tmp_path: Path) -> None:
    sick_run(tmp_path / "run")
    rows = steps_around(read_charts(tmp_path / "run"), BAD)
    assert [int(row[0]) for row in rows] == [*range(BAD - 3, BAD + 4)]
    assert rows[3][1:3] == ["NaN", "NaN"]
    assert "skip" in rows[3][3]
    assert float(rows[2][1]) == pytest.approx(0.8, abs=0.1)
