"""What the scripts of this folder share: a small DDP training, guarded, over gloo."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway

torch.set_num_threads(1)
torch.manual_seed(int(os.environ["RANK"]))
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
rank, size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
policy = headway.Policy(hang_timeout=float(os.environ.get("HANG_TIMEOUT", "0")))
guard = headway.Guard(model, optimizer, run_dir=sys.argv[1], policy=policy)
batches = [torch.randn(8, 4) for _ in range(10_000)]


def pause(seconds: float = 0.02) -> None:
    time.sleep(seconds)


def update(batch: torch.Tensor) -> torch.Tensor:
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    pause()
    return loss.detach()
