"""`headway watch`: what it shows, when it ends."""

from __future__ import annotations

import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.signals import default_interrupt

from headway.cli.watch import POINTS, Curve, WatchedRun
from headway.core.records import EventRecord, Header, StepRecord
from headway.core.signals import Signal
from headway.output.terminal import TerminalPage
from headway.rundir.run_reader import RunDir
from headway.rundir.writer import RunDirWriter

HEADWAY = [sys.executable, "-m", "headway"]


def write(path: Path, *, steps: int = 60, bad: int | None = 40, end: bool = True) -> RunDirWriter:
    writer = RunDirWriter(path, notify=pytest.fail)
    writer.write(Header("headway", {"loss": Signal(), "grad_norm": Signal()}, seq=1))
    seq = 0
    for step in range(steps):
        seq += 1
        loss = math.nan if step == bad else 2.0 - 0.01 * step
        values = {"loss": loss, "grad_norm": 1.0, "lr": 0.1, "host_rss_bytes": 2.0**30}
        writer.write(StepRecord(0, seq, step, values, held=step == bad))
        if step == bad:
            seq += 1
            data = {"action": "skip", "step": step, "reason": "\x1b[31mbad\x1b[0m"}
            writer.write(EventRecord(0, seq, step, "action", data))
    if end:
        writer.write(EventRecord(0, seq + 1, steps, "end", {"steps": steps}))
    writer.flush()
    return writer


def test_a_run_that_has_ended_in_plain_lines(invoke, tmp_path):
    write(tmp_path)
    result = invoke("watch", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    words = " ".join(result.stdout.split())
    assert "error step 40: HD101 nonfinite-loss" in words
    assert "step 40: skip: bad" in words
    assert "step 59 loss 1.41 grad_norm 1 lr 0.1 host 1.0 GiB" in words
    assert words.count("the run ended after 60 steps; next: headway diagnose") == 1


def test_once_shows_a_run_that_goes_on(invoke, tmp_path):
    write(tmp_path, end=False, bad=None)
    result = invoke("watch", tmp_path, "--once")
    assert result.exit_code == 0
    assert "step 59" in result.stdout
    assert "ended" not in result.stdout


def test_what_is_no_run_is_said(invoke, tmp_path):
    for path, said in (
        (tmp_path / "gone", "is not a run directory"),
        (tmp_path, "contains no run"),
    ):
        result = invoke("watch", path, "--once")
        assert result.exit_code == 2
        assert said in result.stderr
        assert "Traceback" not in result.stderr


def test_of_a_folder_of_runs_the_newest_is_followed(invoke, tmp_path):
    for name, age in (("old", 100), ("new", 0)):
        write(tmp_path / "runs" / name, end=False, bad=None, steps=9 if name == "new" else 4)
        os.utime(tmp_path / "runs" / name / "run.json", (1_000_000 - age, 1_000_000 - age))
    result = invoke("watch", tmp_path / "runs", "--once")
    assert result.exit_code == 0, result.stderr
    assert "contains 2 runs; following the newest, " in result.stderr
    assert "step 8" in result.stdout


def test_it_waits_for_a_run_that_has_not_begun(tmp_path):
    process = start(tmp_path / "later", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "waiting for a run in" in process.stderr.readline()
    write(tmp_path / "later", steps=5, bad=None)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "the run ended after 5 steps" in out


def start(path: Path, **how) -> subprocess.Popen:
    return subprocess.Popen(
        [*HEADWAY, "watch", str(path), "--every", "0.1"], preexec_fn=default_interrupt, **how
    )


def test_it_follows_a_growing_run_and_ctrl_c_ends_it_quietly(tmp_path):
    writer = write(tmp_path, steps=3, bad=None, end=False)
    process = start(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("step 2 ")
        writer.write(StepRecord(0, 4, 3, {"loss": 7.0}), now=True)
        assert process.stdout.readline().startswith("step 3  loss 7")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (out, err) == ("", "")


def test_on_a_terminal_it_draws(tmp_path):
    write(tmp_path)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "LINES": "30"}
    environment.pop("NO_COLOR", None)
    process = start(tmp_path, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    shown, until = b"", time.monotonic() + 60
    try:
        while time.monotonic() < until:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 65536)
                except OSError:  # the other end has closed
                    break
            elif process.poll() is not None:
                break
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(ours)
    text = shown.decode()
    assert "1 of 60 updates skipped" in text
    assert "×" in text or "x" in text
    assert "HD101" in text
    assert "\x1b[31mbad" not in text, "what is in a run does not reach the terminal as it is"
    # A long path is folded at the end of a line, and colours stand around each of its parts.
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\s+", " ", text)
    assert re.search(r"next: +headway +diagnose", plain)
    assert str(tmp_path)[:40] in plain


def test_a_long_curve_is_thinned_and_keeps_what_stands_out():
    curve = Curve()
    for step in range(20 * POINTS):
        curve.add(step, {777: math.nan, 1234: 50.0}.get(step, 1.0))
    assert len(curve.values) <= POINTS
    assert curve.steps == sorted(curve.steps)
    assert sum(math.isnan(value) for value in curve.values) == 1
    assert curve.values.count(50.0) == 1
    assert curve.steps[-1] > 19 * POINTS
    assert curve.last == 1.0


def write_ending(path: Path, *events: EventRecord) -> None:
    writer = RunDirWriter(path, notify=pytest.fail)
    writer.write(Header("headway", {"ending": Signal()}, seq=1))
    for event in events:
        writer.write(event)
    writer.flush()


def test_steps_without_records_of_a_killed_run_are_counted(invoke, tmp_path):
    write_ending(
        tmp_path,
        EventRecord(0, 1, 79, "killed", {"signal": 6, "steps": 80, "phase": "user"}),
        EventRecord(0, 2, 79, "end", {"steps": 80, "status": "failed", "signal": 6}),
    )
    words = " ".join(invoke("watch", tmp_path).stdout.split())
    assert "HD913 process-killed" in words
    assert "the run failed after 80 steps; next: headway diagnose" in words


def test_a_run_that_failed_before_its_first_step_shows_why(tmp_path):
    write_ending(
        tmp_path,
        EventRecord(0, 1, 0, "crash", {"error": "KeyError: 'x'", "error_type": "KeyError"}),
        EventRecord(0, 2, 0, "end", {"steps": 0, "status": "failed", "exit": 1}),
    )
    watched, page = WatchedRun(tmp_path), TerminalPage()
    assert "waiting for the first step" in watched.picture(page).plain
    for record in RunDir(tmp_path).follow():
        watched.feed(record)
    shown = watched.picture(page).plain
    assert "failed" in shown
    assert "HD911 script-crashed: KeyError: 'x'" in shown
    assert "waiting" not in shown
