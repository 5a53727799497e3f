"""Trainings of several ranks that are killed, resumed and compared with one that was not."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint  # imported here once, not in every process
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from headway import Guard, Snapshots
from headway.errors import ResumeRefused
from support.rank_processes import RanksFailed, run_ranks
from support.rank_trainings import local_state
from support.snapshot_folders import complete_snapshots

SAMPLES, BATCH, EPOCHS = 24, 2, 2
RESIZABLE = ("ddp", "fsdp", "by hand")
SAME_SIZE = ("flat", "flat views", "pipeline", "zero")
SAME_DATA = ("pipeline", "tensor")
"""Every rank has a part of the model, and all of them read the same samples."""
BY_BUCKET = ("static graph", "powersgd", "static graph, powersgd")
"""DistributedDataParallel whose buckets, and what is kept for each, must be those of before."""
STRATEGIES = (*RESIZABLE, "own buffers", "tensor", *SAME_SIZE)


@dataclass(frozen=True)
class Job:
    """One run of a training on several ranks."""

    strategy: str
    run_dir: Path
    resume: bool = False
    node_local: bool = False
    """Every rank has a directory of its own."""
    fault: str = ""
    """`nan`: the loss of the last rank at step 5; `skip`: no rank uses the batch of step 5."""
    kill_at: tuple[int, int] | None = None
    """(rank, step): it is killed before that step."""
    kill_after: int = 0
    """It is killed there only after so many snapshots are complete."""
    kill_in_write: tuple[int, int] | None = None
    """(rank, operation): it is killed at that file operation of its third snapshot."""
    every: int = 3
    epochs: int = EPOCHS

    def but(self, **changes: Any) -> Job:
        return replace(self, **changes)


@dataclass
class Result:
    """What one rank is left with."""

    start: int = 0
    refused: str = ""
    state: dict[str, Tensor] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict)
    """By step: a checksum of weights and moments before it."""
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, epoch, sample)."""
    held: list[int] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)


class Numbered(Dataset[Any]):
    """Samples that know their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        x = torch.sin(torch.arange(6) * (1.0 + index))
        return x, x.sum(0, keepdim=True), index


class Centred(nn.Module):
    """Running statistics that are also used in training, so that each rank's own matter."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean.clone()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 16)
        self.norm = Centred()
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.drop(torch.relu(self.norm(self.inner(x)))))
        return answer


def run_job(size: int, job: Job) -> list[Result | None]:
    """Run it; None for ranks that died or lost the others."""
    try:
        return run_ranks(train_job, size, job, lone=True)
    except RanksFailed:
        if job.kill_at is None and job.kill_in_write is None:
            raise
        return [None] * size


def train_job(rank: int, job: Job) -> Result:
    """Run a job on this rank."""
    torch.manual_seed(0)
    model = build_model(job.strategy, rank)
    optimizer = build_optimizer(job.strategy, model)
    group = dist.group.WORLD if job.strategy in ("by hand", "pipeline") else None
    group = group if dist.get_world_size() > 1 else None
    run_dir = job.run_dir / f"node{rank}" if job.node_local else job.run_dir
    plan = Snapshots(every=job.every, disk_share=1.0)
    result = Result()
    torch.manual_seed(rank + 1)  # dropout differs between ranks
    guard = Guard(model, optimizer, run_dir=run_dir, group=group, snapshots=plan)
    try:
        if job.resume:
            result.start = guard.resume()
        with dying_in_write(rank, job.kill_in_write):
            train_guarded(rank, job, model, optimizer, guard, result)
    except ResumeRefused as error:
        result.refused = str(error)
        guard.close()
        return result
    result.marks[guard.step] = checksum(model, optimizer)
    result.state = local_state(model, local(optimizer))
    result.held = sorted({action.step for action in guard.actions})
    result.codes = {finding.code for finding in guard.findings}
    return result


def train_guarded(
    rank: int, job: Job, model: nn.Module, optimizer: Any, guard: Guard, result: Result
) -> None:
    shared = job.strategy in SAME_DATA
    size = dist.get_world_size()
    sampler: DistributedSampler[Any] = DistributedSampler(
        Numbered(), 1 if shared else size, 0 if shared else rank, seed=5
    )
    loader = DataLoader(Numbered(), BATCH, sampler=sampler)
    count = -1
    with guard, open(job.run_dir.with_suffix(f".seen{rank}"), "a", buffering=1) as seen:
        for epoch in guard.epochs(job.epochs):
            sampler.set_epoch(epoch)
            for x, y, indices in guard(loader):
                step = guard.step
                count += 1
                if job.fault == "skip" and count == 5:
                    continue
                result.marks[step] = checksum(model, optimizer)
                if job.kill_at == (rank, step):
                    await_snapshots(job.run_dir / "snapshots", job.kill_after)
                    os.kill(os.getpid(), signal.SIGKILL)
                bad = job.fault == "nan" and step == 5 and rank == size - 1
                loss = forward_backward(job, model, x, y, job.fault if bad else "")
                optimizer.step()
                optimizer.zero_grad()
                if guard.replaying:
                    continue
                result.losses[step] = float(loss)
                rows = [(step, epoch, int(index)) for index in indices]
                result.seen += rows
                seen.write("".join(f"{a} {b} {c}\n" for a, b, c in rows))


def build_model(strategy: str, rank: int) -> nn.Module:
    size = dist.get_world_size()
    net: nn.Module = Net()
    if strategy in ("ddp", "zero", *BY_BUCKET):
        static = strategy.startswith("static graph")
        model = nn.parallel.DistributedDataParallel(net, static_graph=static)
        if strategy.endswith("powersgd"):
            net.drop = nn.Identity()
            state = powerSGD_hook.PowerSGDState(
                None, start_powerSGD_iter=2, min_compression_rate=0.5
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model
    if strategy == "own buffers":
        return nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    if strategy == "fsdp":
        mesh = init_device_mesh("cpu", (size,))
        fully_shard(net.inner, mesh=mesh)
        return fully_shard(net, mesh=mesh)
    if strategy == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        return fully_shard(net, mesh=mesh)
    if strategy in ("flat", "flat views"):
        views = strategy == "flat views"
        cpu = torch.device("cpu")
        return FullyShardedDataParallel(net, device_id=cpu, use_orig_params=views)
    if strategy == "tensor":
        plain = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(plain, init_device_mesh("cpu", (size,)), plan)
    if strategy == "pipeline":  # stages with the same names and shapes
        torch.manual_seed(rank)
        return nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    return net


def build_optimizer(strategy: str, model: nn.Module) -> Any:
    if strategy == "zero":
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def local(optimizer: Any) -> Any:
    return optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer


def forward_backward(job: Job, model: nn.Module, x: Tensor, y: Tensor, fault: str) -> Tensor:
    def spoil(loss: Tensor) -> Tensor:
        return loss * float("nan") if fault else loss

    if job.strategy == "pipeline":
        return _through_stages(model, x, y, spoil)
    loss = spoil((model(x) - y).square().mean())
    loss.backward()
    if job.strategy == "by hand":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()
    return loss.detach()


def _through_stages(model: nn.Module, x: Tensor, y: Tensor, spoil: Any) -> Tensor:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank:
        x = torch.zeros_like(x)
        dist.recv(x, rank - 1)
    x.requires_grad_()
    out = model(x)
    if rank == last:
        loss = spoil((out.sum(1, keepdim=True) - y).square().mean())
        loss.backward()
    else:
        dist.send(out.detach(), rank + 1)
        gradient = torch.zeros_like(out)
        dist.recv(gradient, rank + 1)
        out.backward(gradient)
        loss = out.detach().sum()
    if rank:
        assert x.grad is not None
        dist.send(x.grad, rank - 1)
    return loss.detach()


def await_snapshots(folder: Path, count: int) -> None:
    """Wait until so many snapshots are complete; they are written in the background."""
    deadline = time.monotonic() + 60
    while len(complete_snapshots(folder)) < count:
        assert time.monotonic() < deadline, f"fewer than {count} snapshots in {folder}"
        time.sleep(0.01)


def checksum(model: nn.Module, optimizer: Any) -> str:
    """Of weights and moments, whole where they are sharded; every rank must call it."""
    digest = hashlib.sha256()
    moments = [t for entry in local(optimizer).state.values() for t in entry.values()]
    for tensor in (*model.parameters(), *moments):
        if isinstance(tensor, Tensor):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            digest.update(whole.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def dying_in_write(rank: int, when: tuple[int, int] | None) -> Iterator[None]:
    """Kill this process at a file operation of the thread that writes its snapshots."""
    if when is None or when[0] != rank:
        yield
        return
    count, originals = 0, {name: getattr(os, name) for name in ("fsync", "replace", "rename")}

    def counted(name: str) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            nonlocal count
            if threading.current_thread().name.startswith("headway-snapshots"):
                count += 1
                if count == when[1]:
                    os.kill(os.getpid(), signal.SIGKILL)
            return originals[name](*args, **options)

        return operation

    for name in originals:
        setattr(os, name, counted(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
