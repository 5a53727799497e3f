"""The live page in a real browser: runs that train, that are sick, and one that means harm.

`serve.mjs` does the looking, all of it with one browser and one server; here the runs are made, one
of them by a guard that goes on training in a process of its own.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.browser_requirements import missing
from support.pictured_run import train_on_pictures
from support.report_runs import hostile_run, sick_records, well_run, write
from support.serving import SRC, serving

from headway.core.records import Header, Record, StepRecord
from headway.core.signals import Signal

HERE = Path(__file__).parent
LOOKS = re.findall(r"^  async (\w+)\(", (HERE / "serve.mjs").read_text(), re.M)

pytestmark = pytest.mark.browser

TRAINING = """
import sys, time, torch
from headway import Guard
torch.manual_seed(0)
torch.set_num_threads(1)
done, goes_on = sys.argv[1], sys.argv[2]

def train(run, steps, pause, bad=-1):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = [(torch.randn(16, 8), torch.randn(16, 1)) for _ in range(steps)]
    if bad >= 0:
        data[bad][0][3] = float("nan")
    with Guard(model, optimizer, run_dir=run) as guard:
        for x, y in guard(data):
            loss = ((model(x) - y) ** 2).mean()
            guard.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pause)

train(done, 60, 0, bad=30)
print("trained", flush=True)
train(goes_on, 20000, 0.02)
"""


def long_run(folder: Path) -> None:
    """Thirty thousand steps; one is Inf, one a spike."""
    described = {"loss": Signal(), "grad_norm": Signal()}
    stream: list[Record] = [Header("headway", described, {}, {})]
    for step in range(30_000):
        value = math.inf if step == 20_001 else 500.0 if step == 12_345 else 2.0 + step % 7
        stream.append(StepRecord(0, step + 1, step, {"loss": value, "grad_norm": 1.0}))
    write(folder, stream)


def seeded_run(folder: Path, lr: float, shift: float) -> None:
    """Fifty steps; runs of one rate differ by a shift, as those of several seeds do."""
    described = {"loss": Signal(), "grad_norm": Signal()}
    stream: list[Record] = [Header("headway", described, {}, {"settings": {"lr": lr}})]
    for step in range(50):
        value = 2.0 / (1 + 100 * lr * step) + shift
        stream.append(StepRecord(0, step + 1, step, {"loss": value, "grad_norm": 1.0}))
    write(folder, stream)


@pytest.fixture(scope="module")
def came(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of every look: an empty text, or what was wrong."""
    if (why := missing()) is not None:
        pytest.skip(f"{why}; `make test-browser` installs what the browser tests need")
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("served")
    runs = folder / "runs"
    write(runs / "sick", sick_records())
    well_run(runs / "well")
    hostile_run(runs / "<script>window.pwned = 3<" / "x")
    long_run(runs / "long")
    for number, (lr, shift) in enumerate([(0.001, 0.0), (0.001, 0.5), (0.01, 0.0)]):
        seeded_run(runs / f"seed-{number}", lr, shift)
    (runs / "seed-0" / "notes.md").write_text("The first. #slow")
    for number in range(12):
        seeded_run(runs / "sweep" / f"{number:02}", 0.001, number / 10)
    train_on_pictures(runs / "pictured")
    (folder / "train.py").write_text(TRAINING)
    trainings = [
        subprocess.Popen(
            [sys.executable, str(folder / "train.py"), str(runs / done), str(runs / goes_on)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
        )
        for done, goes_on in (("trained", "training"), ("trained-2", "training-2"))
    ]
    try:
        with serving(runs) as up:
            for training in trainings:
                assert training.stdout is not None
                assert training.stdout.readline() == "trained\n"
            done = subprocess.run(
                ["node", str(HERE / "serve.mjs"), up.url, str(folder), str(up.process.pid)],
                capture_output=True,
                text=True,
                timeout=280,
            )
    finally:
        for training in trainings:
            training.kill()
            training.communicate()
    assert done.returncode == 0, done.stderr
    if done.stderr:
        print(done.stderr)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("look", LOOKS)
def test_page(came: dict[str, str], look: str) -> None:
    assert came[look] == ""
