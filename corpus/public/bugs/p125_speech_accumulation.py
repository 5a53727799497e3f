"""Frames of speech on two ranks; communication is left out while gradients accumulate."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
modules = {"encoder": nn.Sequential(nn.Linear(13, 40), nn.GELU(), nn.Linear(40, 6))}
modules = {name: DistributedDataParallel(module) for name, module in modules.items()}
optimizer = torch.optim.Adam(modules["encoder"].parameters(), lr=2e-3)
grad_accumulation_factor = 2


def no_sync(use=True):
    return modules["encoder"].no_sync() if use else contextlib.nullcontext()


truth = torch.randn(13, 6)
torch.manual_seed(7 + dist.get_rank())
for step in range(1, 41):
    should_step = step % grad_accumulation_factor == 0
    frames = torch.randn(24, 13)
    phones = (frames @ truth).argmax(1)
    with no_sync(should_step is not None):
        outputs = modules["encoder"](frames)
        loss = nn.functional.cross_entropy(outputs, phones) / grad_accumulation_factor
        loss.backward()
    if should_step:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
