"""kill -9 at random moments, snapshot writing included: the run always comes home, bit for bit.

The lives of the run are forked from one process that has torch loaded, so that a hundred of them
take a minute; the parent never starts a thread, or forking would not be safe.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.long_runs import length

SCRIPT = textwrap.dedent(
    """
    import os, pickle, random, signal, sys, time
    from pathlib import Path
    import torch
    from torch import nn
    from headway import Guard, Snapshots

    torch.set_num_threads(1)
    EPOCHS, BATCHES = 6, 25
    lives, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dice = random.Random(seed)


    def train(run_dir, told):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.ReLU(),
                              nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * BATCHES)
        plan = Snapshots(every=2, disk_share=1.0, in_memory=1)
        with Guard(model, optimizer, scheduler, run_dir=run_dir, snapshots=plan) as guard:
            steps = guard.resume()
            finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
            os.write(told, f"{steps} {finite}\\n".encode())
            for epoch in guard.epochs(EPOCHS):
                for _ in guard(range(BATCHES)):
                    x = torch.randn(8, 6)
                    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    scheduler.step()
        state = [t.tolist() for t in model.state_dict().values()]
        return pickle.dumps((state, scheduler.last_epoch, torch.randn(3).tolist()))


    def live(run_dir, result, seconds):
        '''One life: until it is done, or until it is killed. What it said when it began.'''
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                result.with_suffix(".new").write_bytes(train(run_dir, theirs))
                result.with_suffix(".new").rename(result)
                code = 0
            finally:
                os._exit(code)
        os.close(theirs)
        said = os.read(ours, 100)  # wait until it lives; nothing when it died on the way
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                break
            time.sleep(0.002)
        os.close(ours)
        return said.decode().split(), status


    live(folder / "calm", folder / "calm.pickle", 1e9)
    killed, round = 0, 0
    while killed < lives:
        round += 1
        run_dir, result, before = folder / f"run{round}", folder / f"run{round}.pickle", 0
        while not result.exists():
            said, status = live(run_dir, result, dice.uniform(0.0, 0.4))
            steps, finite = int(said[0]), said[1]
            assert finite == "True", "a snapshot with a non-finite number was accepted"
            assert steps >= before, f"fell back from step {before} to {steps}"
            before = steps
            if os.WIFSIGNALED(status):
                killed += 1
            else:
                assert os.WEXITSTATUS(status) == 0, f"died at step {steps} and was not killed"
        assert result.read_bytes() == (folder / "calm.pickle").read_bytes(), f"round {round}"
    print(killed, "killed,", round, "rounds")
    """
)


def come_home(lives: int, folder: Path, seed: int) -> str:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(lives), str(seed), str(folder)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


@pytest.mark.slow
def test_a_run_killed_again_and_again_comes_home(tmp_path: Path) -> None:
    assert "killed" in come_home(10, tmp_path, seed=1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_times(tmp_path: Path) -> None:
    times = length(100)
    killed = int(come_home(times, tmp_path, seed=2).split()[0])
    assert killed >= times
