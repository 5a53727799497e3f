"""A run under `torchrun --max-restarts` whose ranks are killed again and again.

    python benchmarks/restart_soak.py --minutes 30 --every 20

A random rank is killed every 20 seconds for 30 minutes; then the run gets its last step, and an
undisturbed run takes the same number of steps. Prints the number of kills, the steps that were
compared, and how many losses differ: every loss of every rank must be equal to that of the
undisturbed run, bit for bit, and so must the final weights.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

RANKS = 2
PROGRESS = 15
"""Minimum number of steps between two kills."""
NOTICE = 100
"""Steps between the order to end the run and its last step, so that every rank knows it in time."""


def work(folder: Path, pause: float) -> None:
    """One rank of the training."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from headway import Guard, Snapshots

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=2)
    loader = DataLoader(data, 4, sampler=sampler)
    torch.manual_seed(rank)
    plan = Snapshots(every=10, disk_share=1.0)
    guard = Guard(model, optimizer, run_dir=folder / "run", snapshots=plan)
    guard.resume()
    done = False
    with guard, open(folder / f"losses{rank}", "a", buffering=1) as losses:
        for epoch in guard.epochs(10**9):
            sampler.set_epoch(epoch)
            for inputs, targets in guard(loader):
                if done := guard.step >= last_step(folder):
                    break
                loss = (model(inputs) - targets).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.write(f"{guard.step} {loss.item().hex()}\n")
                time.sleep(pause)
            if done:
                break
    torch.save(net.state_dict(), folder / f"final{rank}.pt")
    dist.destroy_process_group()


def last_step(folder: Path) -> float:
    """The last step of the run; infinite until it is set."""
    return float(_read(folder / "last_step") or "inf")


def end_at(folder: Path, step: int) -> None:
    """Set the last step of a run, for all its ranks."""
    (folder / "last_step.new").write_text(str(step))
    (folder / "last_step.new").rename(folder / "last_step")


def start(folder: Path, pause: float) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = [f"--nproc-per-node={RANKS}", "--max-restarts=1000", "--monitor-interval=0.5"]
    script = [__file__, "--worker", str(folder), "--pause", str(pause)]
    # With the launcher's own store gloo finds the addresses of dead ranks in it after a restart.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [*launcher, *options, *script]
    with open(folder / "output", "wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def steps_made(folder: Path) -> int:
    lines = _read(folder / "losses0").splitlines()
    return int(lines[-1].split()[0]) if lines and len(lines[-1].split()) == 2 else 0


def disturb(folder: Path, process: subprocess.Popen[bytes], minutes: float, every: float) -> int:
    """Kill a random rank at regular intervals; returns the number of kills."""
    rng, kills, began = random.Random(0), 0, time.monotonic()
    while process.poll() is None and time.monotonic() - began < 60 * minutes:
        deadline, before = time.monotonic() + every, steps_made(folder)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        # A restart takes a while: the next kill must come when the run trains again, otherwise it
        # would never reach its next snapshot.
        while process.poll() is None and steps_made(folder) < before + PROGRESS:
            time.sleep(0.1)
        if process.poll() is None:
            number = _read(folder / f"pid{rng.randrange(RANKS)}")
            try:
                os.kill(int(number), signal.SIGKILL)
                kills += 1
            except (ProcessLookupError, ValueError):
                continue
    return kills


def compare(calm: Path, disturbed: Path) -> tuple[int, int, int, bool]:
    """(losses compared, that differ, that are missing; whether the final weights are equal)."""
    import torch

    compared = different = missing = 0
    equal = True
    for rank in range(RANKS):
        expected = dict(line.split() for line in _read(calm / f"losses{rank}").splitlines())
        seen = set()
        for line in _read(disturbed / f"losses{rank}").splitlines():
            parts = line.split()
            if len(parts) == 2 and parts[0] in expected:  # a kill may tear a line
                compared += 1
                different += expected[parts[0]] != parts[1]
                seen.add(parts[0])
        missing += len(expected.keys() - seen)
        files = [folder / f"final{rank}.pt" for folder in (calm, disturbed)]
        one, other = (torch.load(file, weights_only=True) for file in files)
        equal = equal and all(torch.equal(one[name], other[name]) for name in one)
    return compared, different, missing, equal


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two steps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.pause)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for name in ("disturbed", "calm"):
            (folder / name).mkdir()
        began = time.monotonic()
        process = start(folder / "disturbed", options.pause)
        kills = disturb(folder / "disturbed", process, options.minutes, options.every)
        seconds = time.monotonic() - began
        steps = steps_made(folder / "disturbed") + NOTICE
        for name in ("disturbed", "calm"):
            end_at(folder / name, steps)
        process.wait()
        calm = start(folder / "calm", 0.0)
        calm.wait()
        if process.returncode or calm.returncode:
            print(_read(folder / "disturbed" / "output")[-3000:])
            raise SystemExit(f"the run ended with {process.returncode}, {calm.returncode}")
        compared, different, missing, equal = compare(folder / "calm", folder / "disturbed")
    result = {
        "script": "benchmarks/restart_soak.py",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, gloo, {RANKS} ranks",
        "torch": version("torch"),
        "minutes": round(seconds / 60, 1),
        "seconds_between_kills": options.every,
        "kills": kills,
        "steps": steps,
        "losses_compared": compared,
        "losses_that_differ": different,
        "losses_missing": missing,
        "final_weights_equal": equal,
    }
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(bool(different or missing) or not equal)


if __name__ == "__main__":
    main()
