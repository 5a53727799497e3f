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
import time
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
inner = model if by_hand else model.module
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(rank)
for step in range(20):
    if how == "by hand, forgotten" and rank == 1:
        time.sleep(0.05)  # nothing holds the ranks together
    x = torch.randn(16, 8, generator=generator)
    optimizer.zero_grad()
    out = inner(x) if how == "past the wrapper" else model(x)
    loss = ((out - x.sum(1, keepdim=True)) ** 2).mean()
    if how == "nan" and rank == 1:
        loss = loss * torch.log(model(x).mean() - 5)
    loss.backward()
    if how == "clip" and rank == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    for p in model.parameters() if by_hand and how != "by hand, forgotten" else ():
        mine = p.grad.clone()
        dist.all_reduce(p.grad)
        p.grad /= 2
        if how == "by hand, torn" and rank == 1:
            p.grad.view(-1)[0] = mine.view(-1)[0]
    optimizer.step()
dist.destroy_process_group()
"""


SPREAD = """
import sys
import torch
import torch.distributed as dist
from torch import nn

how = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32 // world)
        self.down = nn.Linear(32 // world, 16, bias=False)
        nn.init.zeros_(self.up.bias)  # begins equal, and is a shard

    def forward(self, x):
        return x + Sum.apply(self.down(torch.relu(self.up(Copy.apply(self.norm(x))))))

torch.manual_seed(0)
head = nn.Linear(16, 3)
torch.manual_seed(1 + rank)
model = nn.Sequential(Block(), Block(), head)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
shards = {id(p) for b in model[:2] for part in (b.up, b.down) for p in part.parameters()}
with torch.no_grad():
    for block in model[:2]:
        block.down.weight *= 1 + rank
data = torch.Generator().manual_seed(5)
for step in range(20):
    x = torch.randn(16, 16, generator=data)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    own = sum(p.grad.square().sum() for p in model.parameters() if id(p) in shards)
    if how == "one norm":
        dist.all_reduce(own)
    norm = own + sum(p.grad.square().sum() for p in model.parameters() if id(p) not in shards)
    for p in model.parameters():
        p.grad *= min(1.0, 0.1 / norm.sqrt().item())
    optimizer.step()
dist.destroy_process_group()
"""

STAGES = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
stage = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(0)
for step in range(20):
    x = torch.randn(16, 8, generator=data)
    optimizer.zero_grad()
    if rank == 0:
        out = stage(x)
        dist.send(out.detach(), 1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, 1)
        out.backward(gradient)
    else:
        received = torch.empty(16, 8)
        dist.recv(received, 0)
        received.requires_grad_()
        ((stage(received) - x) ** 2).mean().backward()
        dist.send(received.grad, 0)
    optimizer.step()
dist.destroy_process_group()
"""


def check(folder: Path, how: str, source: str = SCRIPT, steps: int = 4) -> Any:
    script = folder / "train.py"
    script.write_text(source)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "headway", "check", str(script), "--format", "json"]
    command += ["--max-steps", str(steps)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, how], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    return json.loads(done.stdout)  # one report: two would be no JSON


LINES = {
    "by hand, torn": "dist.all_reduce(p.grad)",
    "by hand, forgotten": "optimizer.step()",
    "past the wrapper": 'out = inner(x) if how == "past the wrapper" else model(x)',
}


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("clip", "HD605"),
        ("nan", "HD602"),
        ("well", None),
        ("by hand", None),
        ("by hand, torn", "HD601"),
        ("by hand, forgotten", "HD601"),
        pytest.param("past the wrapper", "HD601", marks=pytest.mark.nightly),
    ],
)
def test_two_ranks(tmp_path: Path, how: str, code: str | None) -> None:
    report = check(tmp_path, how)
    found = [item["code"] for item in report["findings"] if item["severity"] != "info"]
    if code is None:
        assert found == []
        return
    assert report["causes"][0]["code"] == code
    if code == "HD601":
        text = SCRIPT.splitlines()[report["findings"][0]["where"]["line"] - 1].strip()
        assert text == LINES[how]
    if how == "clip":
        assert "HD601" in found
    elif how == "nan":
        lines = {item["where"]["line"] for item in report["findings"]}
        assert (
            SCRIPT.splitlines().index("        loss = loss * torch.log(model(x).mean() - 5)") + 1
            in lines
        )


def test_ranks_that_share_one_model_clip_by_one_norm(tmp_path: Path) -> None:
    report = check(tmp_path, "own norm", SPREAD, steps=8)
    assert report["causes"][0]["code"] == "HD605"
    (found,) = [item for item in report["findings"] if item["code"] == "HD605"]
    text = SPREAD.splitlines()[found["where"]["line"] - 1].strip()
    assert text.startswith("p.grad *= min(")
    (apart,) = [item for item in report["findings"] if item["code"] == "HD601"]
    assert all("norm" in name or name.startswith("2.") for name in apart["evidence"]["parameters"])
    assert apart["evidence"]["last_equal_step"] == 0


@pytest.mark.nightly
def test_ranks_that_clip_by_one_norm_stay_equal(tmp_path: Path) -> None:
    assert check(tmp_path, "one norm", SPREAD, steps=8)["findings"] == []


@pytest.mark.nightly
def test_stages_of_a_pipeline_are_no_replicas(tmp_path: Path) -> None:
    report = check(tmp_path, "", STAGES, steps=6)
    assert [item for item in report["findings"] if item["code"].startswith("HD6")] == []
