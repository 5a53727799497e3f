"""The heartbeat says how far a process got, also after it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway.rundir import vanished_run
from headway.rundir.heartbeat import (
    BACKWARD,
    PHASES,
    SIZE,
    USER,
    HeartbeatWriter,
    heartbeat_file,
    heartbeat_ranks,
    read_heartbeat,
)
from headway.rundir.vanished_run import (
    CrashStack,
    describe_vanished,
    stack_file,
    vanished_step,
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    writer = HeartbeatWriter.open(tmp_path, rank=3, segment=2)
    first = read_heartbeat(tmp_path, 3)
    assert first is not None
    assert (first.steps, first.phase, first.state, first.sample) == (0, "start", "running", {})
    writer.beat(7)
    writer.enter(BACKWARD)
    writer.sample({"file": "train.py", "line": 12})
    found = read_heartbeat(tmp_path, 3)
    assert found is not None
    assert (found.steps, found.phase, found.segment, found.pid) == (7, "backward", 2, os.getpid())
    assert found.step == 7  # six were complete, the seventh is index 6, the next begins at index 7
    assert (found.sample["file"], found.sample["line"]) == ("train.py", 12)
    assert found.is_alive()
    writer.enter(USER)
    after = read_heartbeat(tmp_path, 3)
    assert after is not None
    assert after.step == 6
    assert heartbeat_ranks(tmp_path) == [3]


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_the_end_is_a_state(tmp_path: Path, status: str) -> None:
    writer = HeartbeatWriter.open(tmp_path, rank=0, segment=0)
    writer.beat(1)
    writer.end(status)
    writer.beat(2)  # after the end nothing is written
    found = read_heartbeat(tmp_path, 0)
    assert found is not None
    assert (found.state, found.steps) == (status, 1)


def test_a_second_writer_does_not_disturb_the_first(tmp_path: Path) -> None:
    first = HeartbeatWriter.open(tmp_path, rank=0, segment=0)
    second = HeartbeatWriter.open(tmp_path, rank=0, segment=1)
    first.beat(5)  # its page is another file by now
    second.beat(9)
    found = read_heartbeat(tmp_path, 0)
    assert found is not None
    assert (found.segment, found.steps) == (1, 9)


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    writer = HeartbeatWriter.open(tmp_path / "nowhere", rank=0, segment=0)
    writer.beat(1)
    writer.enter(BACKWARD)
    writer.sample({})
    writer.end("finished")
    assert read_heartbeat(tmp_path / "nowhere", 0) is None


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"\x00" * SIZE, b"\xff" * SIZE])
def test_a_damaged_file_is_no_heartbeat(tmp_path: Path, content: bytes) -> None:
    heartbeat_file(tmp_path, 0).write_bytes(content)
    assert read_heartbeat(tmp_path, 0) is None


def test_every_byte_after_the_magic_may_be_damaged(tmp_path: Path) -> None:
    HeartbeatWriter.open(tmp_path, rank=0, segment=0)
    path = heartbeat_file(tmp_path, 0)
    whole = path.read_bytes()
    for at in (*range(64, 140), *range(1020, 1040)):
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        found = read_heartbeat(tmp_path, 0)
        assert found is None or found.phase in PHASES


def test_it_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, os, pathlib; from headway.rundir.heartbeat import *\n"
        "writer = HeartbeatWriter.open(pathlib.Path(sys.argv[1]), rank=0, segment=0)\n"
        "writer.beat(41); writer.enter(BACKWARD); print('ready', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        alive = read_heartbeat(tmp_path, 0)
        assert alive is not None
        assert alive.is_alive()
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = read_heartbeat(tmp_path, 0)
    assert found is not None
    assert (found.steps, found.phase, found.state) == (41, "backward", "running")
    assert found.is_alive() is False


FUSED = """  File "/me/train.py", line 3 in fused
  File "/lib/torch/nn/modules/module.py", line 9 in f
"""


@pytest.mark.parametrize(
    ("frames", "phase", "step"),
    [
        (FUSED, "forward", 7),
        ('  File "/me/train.py", line 3 in <module>\n', "user", 6),
        ("", "user", 6),
    ],
)
def test_the_stack_shows_that_the_next_step_had_begun(
    tmp_path: Path, frames: str, phase: str, step: int
) -> None:
    writer = HeartbeatWriter.open(tmp_path, rank=0, segment=0)
    writer.beat(7)
    writer.enter(USER)
    stack_file(tmp_path, 0).write_text(
        "Fatal Python error: Illegal instruction\n\n"
        f"Current thread 0x1 (most recent call first):\n{frames}"
    )
    heartbeat = read_heartbeat(tmp_path, 0)
    facts = describe_vanished(heartbeat, CrashStack.read(tmp_path, 0))
    assert (facts["phase"], vanished_step(heartbeat, facts)) == (phase, step)


def test_a_frame_of_headway_is_not_the_users() -> None:
    own = vanished_run.__file__
    users = ("/me/train.py", 3, "g")
    assert CrashStack(None, ((own, 5, "f"), users)).user_frame() == users
