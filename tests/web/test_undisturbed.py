"""A page that reads a run, slowly, and is killed in the middle: training does not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.serving import SRC, serving

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("torch")

STEPS = 300

TRAINING = """
import sys, time, torch
from headway import Guard
torch.manual_seed(0)
torch.set_num_threads(1)
run, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = [(torch.randn(16, 8), torch.randn(16, 1)) for _ in range(steps)]
data[107][0][3] = float("nan")
losses = []
with Guard(model, optimizer, run_dir=run, max_norm=1.0) as guard:
    for number, (x, y) in enumerate(guard(data)):
        loss = ((model(x) - y) ** 2).mean()
        guard.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().numpy().tobytes().hex())
        if number % 20 == 0:
            print(number, flush=True)
            sys.stdin.readline()
weights = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
open(out, "w").write("\\n".join(losses + weights))
"""


def train(folder: Path, name: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(TRAINING)
    return subprocess.Popen(
        [
            sys.executable,
            str(folder / "train.py"),
            str(folder / "runs" / name),
            str(folder / f"{name}.txt"),
            str(STEPS),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_training_is_the_same_bit_by_bit(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    alone = train(tmp_path, "alone")
    alone.communicate("\n" * STEPS, timeout=120)
    assert alone.returncode == 0

    watched = train(tmp_path, "watched")
    assert watched.stdin is not None
    assert watched.stdout is not None
    with serving(tmp_path / "runs") as up:
        for mark in range(0, STEPS, 20):
            assert watched.stdout.readline().strip() == str(mark)
            if mark == 40:
                run = up.wait_for("watched")
                up.ask(f"/api/runs/{run['id']}/charts")
            if mark == 100:
                up.process.send_signal(signal.SIGSTOP)  # as slow as it gets
            if mark == 160:
                up.process.send_signal(signal.SIGKILL)
                up.process.wait()
            watched.stdin.write("\n")
            watched.stdin.flush()
    watched.communicate(timeout=120)
    assert watched.returncode == 0
    first, second = (tmp_path / f"{name}.txt" for name in ("alone", "watched"))
    assert len(first.read_text().splitlines()) >= STEPS
    assert first.read_bytes() == second.read_bytes()
