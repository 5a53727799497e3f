"""Incidents on disks that fail, in processes that are killed: whole or absent, never half."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.explain.incident_file import incident_folder

SCRIPT = """
import resource, sys
import torch
from headway import Guard, Policy, Snapshots

run_dir, most_bytes, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
model = torch.nn.Linear(400, 400)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
policy = Policy(replays=steps, replay_gap=1, skips_in_a_row=steps, skips_per_window=steps)
guard = Guard(model, optimizer, run_dir=run_dir, policy=policy, snapshots=Snapshots(on_disk=0))
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
bad = torch.ones(400, 400)
bad[3, 5] = 0.0
for x in guard([bad] * steps):
    optimizer.zero_grad()
    model(x.log()).mean().backward()
    optimizer.step()
guard.close()
print("the end", guard.step, len(guard.explanations))
"""


def start(folder: Path, *args: object) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "train.py", *map(str, args)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HEADWAY_STRICT": "1"},
    )


def count(incidents: Path) -> tuple[int, int]:
    """(whole incidents, folders that somebody fills or has left)."""
    found = list(incidents.iterdir()) if incidents.is_dir() else []
    fresh = sum(folder.name.startswith(".new-") for folder in found)
    return len(found) - fresh, fresh


def wait_for_writing(incidents: Path) -> None:
    """Until one more incident is whole, and yet another is being written."""
    whole, left = count(incidents)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        now, fresh = count(incidents)
        if now > whole and fresh > left:
            return
        time.sleep(0.001)
    pytest.fail("nothing was written")


@pytest.mark.slow
def test_a_killed_run_leaves_whole_incidents_only(tmp_path: Path) -> None:
    """Killed while it writes, four times in the same run directory, a little later each time."""
    incidents = tmp_path / "run" / "incidents"
    for attempt in range(4):
        running = start(tmp_path, "run", 0, 1000)
        wait_for_writing(incidents)
        time.sleep(0.003 * attempt)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        assert running.returncode == -signal.SIGKILL
        whole = list(incidents.glob("[0-9]*"))
        assert len(whole) > attempt
        for folder in whole:
            found = incident_folder.read_incident(folder)
            assert found.batches()[0].shape == (400, 400)
            assert found.state() is not None
            assert found.rng() is not None
            assert (folder / "README.md").stat().st_size > 500
    assert count(incidents)[1] > 0, "at least one was caught in the act"


@pytest.mark.skipif(os.name != "posix", reason="limits are set the POSIX way")
@pytest.mark.slow
def test_a_full_disk_costs_the_incident_only(tmp_path: Path) -> None:
    """No file may grow beyond 300 kB: records can be written, weights and batch cannot."""
    done = start(tmp_path, "run", 300_000, 4)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    assert out == "the end 4 4\n"
    assert err.count("cannot write the incident") == 1
    assert os.listdir(tmp_path / "run" / "incidents") == []
    assert '"incident"' in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_costs_the_incident_only(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "incidents").write_text("in the way")
    done = start(tmp_path, "run", 0, 4)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    assert out == "the end 4 4\n"
    assert err.count("cannot write the incident") == 1


@pytest.mark.slow
def test_what_killed_writers_left_is_swept_away(tmp_path: Path) -> None:
    home = tmp_path / "run" / "incidents"
    for name, age in ((".new-old", 7200.0), (".new-young", 0.0)):
        (home / name).mkdir(parents=True)
        (home / name / "batch.pt").write_bytes(b"half")
        when = time.time() - age
        os.utime(home / name, (when, when))
    done = start(tmp_path, "run", 0, 1)
    _, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    assert sorted(os.listdir(home)) == [".new-young", "1-step0"]
