"""One process at a time records into a run directory, and a dead one blocks nobody."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import RunDirInUse
from headway.rundir.run_lock import LOCK_FILE, LockHolder, RunLock
from headway.rundir.writer import RunDirWriter

HOLD = """
import sys
from pathlib import Path
from headway.rundir.run_lock import RunLock
lock = RunLock.acquire(Path(sys.argv[1]))
{more}
print("locked", flush=True)
sys.stdin.read()
"""


def start_holder(folder: Path, more: str = "") -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(more=more), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    return holder


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start_holder(tmp_path)
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_and_learns_who_holds_the_directory(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(RunDirInUse) as refused:
        RunDirWriter(tmp_path, notify=pytest.fail)
    assert f"process {holder.pid} on {socket.gethostname()}" in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_other_ranks_of_a_job_write_beside_the_holder(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    assert not RunDirWriter(tmp_path, rank=1, notify=pytest.fail).broken


def test_the_directory_of_a_killed_process_is_taken_over(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / LOCK_FILE).is_file()
    writer = RunDirWriter(tmp_path, notify=pytest.fail)
    named = LockHolder.parse((tmp_path / LOCK_FILE).read_bytes())
    assert named is not None
    assert named.pid == os.getpid()
    writer.close()


def test_orphaned_workers_of_a_killed_process_do_not_keep_the_lock(tmp_path: Path) -> None:
    # The child reports nothing, so its number is written where the test finds it.
    fork = "import os\nchild = os.fork()\nif not child:\n    import time; time.sleep(600)\n"
    fork += "Path(sys.argv[1], 'child').write_text(str(child))"
    process = start_holder(tmp_path, fork)
    child = int((tmp_path / "child").read_text())
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # still there
        RunLock.acquire(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_a_live_holder_keeps_a_directory_whose_lock_the_system_has_dropped(tmp_path: Path) -> None:
    # POSIX drops a lock when its process closes any descriptor of the file.
    process = start_holder(tmp_path, "Path(sys.argv[1], 'run.lock').read_bytes()")
    try:
        with pytest.raises(RunDirInUse, match=str(process.pid)):
            RunLock.acquire(tmp_path)
    finally:
        process.kill()
        process.communicate()


def test_a_reused_process_number_does_not_block(tmp_path: Path) -> None:
    ours = LockHolder.this_process()
    other = {"pid": os.getppid(), "host": ours.host, "start_ticks": 1, "since": 0.0}
    (tmp_path / LOCK_FILE).write_text(json.dumps(other))
    RunLock.acquire(tmp_path).release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\x00"])
def test_a_lock_file_without_a_holder_does_not_block(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK_FILE).write_bytes(content)
    RunLock.acquire(tmp_path).release()


def test_guards_of_one_process_share_the_lock_until_the_last_closes(tmp_path: Path) -> None:
    first = RunDirWriter(tmp_path, notify=pytest.fail)
    second = RunDirWriter(tmp_path, notify=pytest.fail)
    first.close()
    first.close()
    assert (tmp_path / LOCK_FILE).is_file()
    second.close()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_writer_that_nobody_closes_gives_the_lock_back(tmp_path: Path) -> None:
    writer = RunDirWriter(tmp_path, notify=pytest.fail)
    assert (tmp_path / LOCK_FILE).is_file()
    del writer
    assert not (tmp_path / LOCK_FILE).exists()


def test_without_locks_a_holder_on_another_host_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr("headway.rundir.run_lock.fcntl.lockf", no_locks)
    other = {"pid": 7, "host": "node17.example", "start_ticks": 5, "since": 0.0}
    (tmp_path / LOCK_FILE).write_text(json.dumps(other))
    notices: list[str] = []
    writer = RunDirWriter(tmp_path, notify=notices.append)
    assert not writer.broken
    assert len(notices) == 1
    assert "process 7 on node17.example" in notices[0]
    writer.close()
