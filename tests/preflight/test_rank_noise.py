"""Random numbers of several ranks: the same for all, or each its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # two processes under torchrun

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
rate = 0.3 if how in ("one seed", "own seeds", "same batches") else 0.0
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(rate), nn.Linear(16, 1))
model = DistributedDataParallel(net)
if how == "own seeds":
    torch.manual_seed(rank + 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(0 if how == "same batches" else rank)
for step in range(6):
    x = torch.randn(16, 8, generator=None if how == "own batches" else generator)
    if how == "noise":
        x = x + 0.1 * torch.randn_like(x)
    optimizer.zero_grad()
    ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def noise_findings(folder: Path, how: str) -> list[Any]:
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "headway", "check", str(script), "--max-steps", "5", "--format", "json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, how], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    report = json.loads(done.stdout)
    return [item for item in report["findings"] if item["code"] == "HD606"]


def test_one_seed_for_all_ranks(tmp_path: Path) -> None:
    [finding] = noise_findings(tmp_path, "one seed")
    assert "all 2 ranks draw the same random numbers" in finding["message"]
    assert finding["where"]["line"] == 11


@pytest.mark.parametrize(
    ("how", "words"),
    [("noise", "the same random numbers"), ("own batches", "the same random batches")],
)
def test_one_seed_for_what_is_drawn_outside_the_model(tmp_path: Path, how: str, words: str) -> None:
    [finding] = noise_findings(tmp_path, how)
    assert words in finding["message"]


@pytest.mark.parametrize("how", ["own seeds", "same batches", "no dropout"])
def test_ranks_that_may(tmp_path: Path, how: str) -> None:
    assert not noise_findings(tmp_path, how)
