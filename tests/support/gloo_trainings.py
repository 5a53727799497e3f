"""Trainings by several real processes, healthy and sick, measured as the rank signals ask.

Run once per rank: `python gloo_trainings.py RANK WORLD MEETING-FILE OUTPUT`. Rank 0 writes a line
of JSON for each training: its name and its records. The measuring is done here by hand and openly,
so that what the checks are told does not depend on the guard that will tell them in a live run.
"""

# No `from __future__ import annotations`: DDP reads the annotations of its hook as they are.

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from headway.core.codec import to_json
from headway.core.records import Column, Header, Record, StepRecord
from headway.core.signals import Signal

STEPS = 130
EVERY = 10
WEIGHTS_EVERY = 20
COLUMNS = (
    "nonfinite",
    "loss",
    "grad_norm",
    "step_time_s",
    "weights_hash",
    "batch_hash",
    "clip_norm",
)
LATE_S = 0.02


@dataclass(frozen=True)
class Training:
    """What is wrong with it, if anything."""

    sampler: bool = True
    one_batch: bool = False
    around_wrapper: bool = False
    bit_flips_on: int | None = None
    poisoned_on: int | None = None
    work_s: float = 0.0
    """What every rank does at a step, besides."""
    late: Callable[[int, int], bool] = lambda rank, step: False
    clips_own_part: bool = False


TRAININGS = {
    "healthy": Training(),
    "one fixed batch": Training(sampler=False, one_batch=True),
    "turns at being late": Training(work_s=0.01, late=lambda rank, step: step // EVERY % 3 == rank),
    "no sampler": Training(sampler=False),
    "around the wrapper": Training(around_wrapper=True),
    "a bit flips": Training(bit_flips_on=2),
    "a poisoned batch": Training(poisoned_on=1),
    "a straggler": Training(work_s=0.01, late=lambda rank, step: rank == 1),
    "each clips its own part": Training(clips_own_part=True),
}


def batches(training: Training, world: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(480, 7, generator=generator))
    if training.sampler:
        sampler = DistributedSampler(data, seed=3)
        loader = DataLoader(data, batch_size=8, sampler=sampler)
    else:
        order = torch.Generator().manual_seed(3)
        loader = DataLoader(data, batch_size=8, shuffle=True, generator=order)
    first = next(iter(loader))
    epoch = 0
    while True:
        if training.sampler:
            sampler.set_epoch(epoch)
        epoch += 1
        for (batch,) in [first] if training.one_batch else loader:
            yield batch.clone()


def checksum(tensors: list[Tensor]) -> float:
    total = sum(
        (2 * at + 1) * int(tensor.detach().contiguous().view(torch.int32).sum(dtype=torch.int64))
        for at, tensor in enumerate(tensors)
    )
    return float(total % (1 << 24))


class LocalNorm:
    """The norm of a rank's own gradient, before DDP's reduction."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.squares: list[Tensor] = []
        model.register_comm_hook(None, self._hook)

    def _hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        self.squares.append(buffer.double().square().sum())
        buffer.div_(dist.get_world_size())
        return (
            dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])
        )

    def take(self) -> float:
        squares, self.squares = self.squares, []
        return float(sum(squares) ** 0.5) if squares else float("nan")


def carry_out(training: Training, rank: int, world: int) -> Iterator[Record]:
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    model = DistributedDataParallel(inner)
    norm = LocalNorm(model)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.05)
    own = weights[rank::world] if training.clips_own_part else weights
    yield Header(
        "gloo",
        signals={f"rank/{name}": Signal() for name in COLUMNS},
        axes={"rank": tuple(map(str, range(world)))},
        world_size=world,
    )
    data = batches(training, world)
    for step in range(STEPS):
        began = time.thread_time()
        batch = next(data)
        if step == 70 and training.poisoned_on == rank:
            batch[3, 2] = float("nan")
        asleep = training.work_s + LATE_S * training.late(rank, step)
        time.sleep(asleep)
        forward = inner if training.around_wrapper else model
        loss = (forward(batch[:, :6]).squeeze(1) - batch[:, 6]).square().mean()
        # As if this process had a core of its own: other tests may run beside it.
        seconds = time.thread_time() - began + asleep
        loss.backward()
        local = norm.take()
        clip = float(nn.utils.clip_grad_norm_(own, 0.5))
        mine = [
            float(not torch.isfinite(loss)),
            float(loss.detach()),
            local,
            seconds,
            checksum(weights) if step % WEIGHTS_EVERY == 0 else 0.0,
            checksum([batch]),
            clip,
        ]
        rows = torch.zeros(world, len(mine), dtype=torch.float64)
        rows[rank] = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(rows)
        held = not bool(torch.isfinite(rows[:, 1]).all())
        if not held:
            optimizer.step()
        optimizer.zero_grad()
        if step == 50 and training.bit_flips_on == rank:
            with torch.no_grad():
                weights[0][0, 0] *= 2
        if held or step % EVERY == 0:
            named = zip(COLUMNS, rows.t().tolist(), strict=True)
            columns = {f"rank/{name}": Column(values) for name, values in named}
            if not held:
                del columns["rank/nonfinite"]
            if step % WEIGHTS_EVERY:
                del columns["rank/weights_hash"]
            yield StepRecord(0, step + 1, step, {"loss": mine[1]}, columns, held=held)


def main(rank: int, world: int, meeting: str, output: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    told = []
    for name, training in TRAININGS.items():
        records = [to_json(record) for record in carry_out(training, rank, world)]
        told.append(json.dumps([name, records], allow_nan=False))
    if rank == 0:
        Path(output).write_text("\n".join(told), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
    # A gloo thread that frees a tensor of the last collective while the interpreter shuts down
    # aborts the process ("terminate called without an active exception"): a defect of torch.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
