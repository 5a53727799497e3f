"""Ranks of one job record into one directory, and a second job is refused on all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from support.rank_processes import run_ranks
from support.rank_trainings import listen
from torch import nn

import headway
from headway.errors import RunDirInUse, UsageError
from headway.rundir.run_lock import LOCK_FILE, RunLock
from headway.torch_adapters.process_groups.rank_group import chosen_by_rank_zero

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn

# Far enough apart for the ranks' clocks to show different seconds.
time.sleep(1.1 * int(os.environ["RANK"]))
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if "die" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(1.5 * (step == 7))  # records are written once a second
        if step == 9:
            os._exit(9)
dist.destroy_process_group()
"""


def try_guard(rank: int, folder: str) -> str:
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        headway.Guard(model, optimizer, run_dir=folder)
    except RunDirInUse as error:
        return str(error)
    return "not refused"


def test_every_rank_is_refused_where_rank_0_is(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path)
    first, second = run_ranks(try_guard, 2, str(tmp_path))
    lock.release()
    assert f"process {os.getpid()} on " in first
    assert "rank 0" in second


def test_processes_that_cannot_reach_each_other_need_a_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UsageError, match="--out DIR"):
        chosen_by_rank_zero("run_dir", "mine")


def launch(folder: Path, *options: str, words: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *options]
    command += ["-m", "headway", "run", "train.py", "--", *words]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # A restart over gloo hangs in `init_process_group` where attempts share torchrun's store.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int("--max-restarts=1" in options)),
    }
    return subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--standalone",), ("--master-port=29641",)])
def test_torchrun_gives_one_directory(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = launch(tmp_path, *options)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output
    (folder,) = (tmp_path / "headway-runs").iterdir()
    assert {"run.json", "steps.rank0.jsonl", "steps.rank1.jsonl"} <= set(os.listdir(folder))
    assert LOCK_FILE not in os.listdir(folder)


@pytest.mark.slow
def test_a_restart_by_torchrun_continues_in_the_same_directory(tmp_path: Path) -> None:
    run = launch(tmp_path, "--standalone", "--max-restarts=1", words=("die",))
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output
    (folder,) = (tmp_path / "headway-runs").iterdir()
    records = map(json.loads, (folder / "steps.rank0.jsonl").read_text().splitlines())
    segments = Counter(record.get("seg", 0) for record in records)
    assert set(segments) == {0, 1}
    assert segments[0] >= 8
    assert segments[1] == 12


@pytest.mark.slow
def test_a_second_run_of_a_busy_directory_ends_with_2_before_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('started', flush=True)\ninput()\n")
    command = [sys.executable, "-m", "headway", "run", "train.py", "--out", "a"]
    first = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "a" / LOCK_FILE).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        holder = json.loads((tmp_path / "a" / LOCK_FILE).read_text())  # the child of `headway run`
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2
        assert f"in use by process {holder['pid']} on {holder['host']}" in done.stderr
        assert "started" not in done.stdout
        assert "Traceback" not in done.stderr
    finally:
        first.communicate("\n")


def train_with_a_directory_on_one_rank(rank: int, folder: str, resume: bool) -> list[str]:
    said = listen()
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = headway.Guard(model, optimizer, run_dir=folder if rank == 0 else None)
    try:
        if resume:
            guard.resume()
    except UsageError as error:
        return [str(error)]
    for batch in guard([torch.ones(2, 3)] * 3):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return said


@pytest.mark.parametrize("resume", [False, True])
def test_a_directory_that_one_rank_lacks_is_told_and_no_rank_waits(
    tmp_path: Path, resume: bool
) -> None:
    first, second = run_ranks(train_with_a_directory_on_one_rank, 2, str(tmp_path), resume)
    if resume:
        assert first == second
        assert "rank 1: guard.resume() needs a run directory" in first[0]
    else:
        assert any("rank 1 has no run directory" in text for text in first)
        assert second == []
