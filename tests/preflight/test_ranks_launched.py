"""An unmodified script under torchrun: what only several ranks can get wrong, told once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # whole trainings, each watched from end to end

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
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
by_hand = how.startswith("by hand")
if not by_hand:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(rank)
for step in range(20):
    x = torch.randn(16, 8, generator=generator)
    optimizer.zero_grad()
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    if how == "nan" and rank == 1:
        loss = loss * torch.log(model(x).mean() - 5)
    loss.backward()
    if how == "clip" and rank == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    for p in model.parameters() if by_hand else ():
        mine = p.grad.clone()
        dist.all_reduce(p.grad)
        p.grad /= 2
        if how == "by hand, torn" and rank == 1:
            p.grad.view(-1)[0] = mine.view(-1)[0]
    optimizer.step()
dist.destroy_process_group()
"""


def check(folder: Path, how: str) -> Any:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "headway", "check", str(script), "--max-steps", "4", "--format", "json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, how], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    return json.loads(done.stdout)  # one report: two would be no JSON


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("clip", "HD605"),
        ("nan", "HD602"),
        ("well", None),
        ("by hand", None),
        ("by hand, torn", "HD601"),
    ],
)
def test_two_ranks(tmp_path: Path, how: str, code: str | None) -> None:
    report = check(tmp_path, how)
    found = [item["code"] for item in report["findings"] if item["severity"] != "info"]
    if code is None:
        assert found == []
        return
    assert report["causes"][0]["code"] == code
    if how == "clip":
        assert "HD601" in found
    elif how == "nan":
        lines = {item["where"]["line"] for item in report["findings"]}
        assert (
            SCRIPT.splitlines().index("        loss = loss * torch.log(model(x).mean() - 5)") + 1
            in lines
        )
