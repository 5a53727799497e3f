"""Small seeded trainings for the goldens. Each can run with a guard and without one.

A training takes `watch`, which makes the guard: `headway.Guard`, or `Unguarded`, which has the
same methods and does nothing. It returns the models and optimizers whose state is hashed. Line
numbers of this file are part of the goldens: add new trainings at the end.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from headway import AdaGC, Policy, Snapshots, TrainingHalted, ZClip

Batch = tuple[Tensor, Tensor]
Watch = Callable[..., Any]
Parts = list[Any]


class Unguarded:
    """The methods of a guard that these trainings use, without any guarding."""

    def __init__(self, model: Any, optimizer: Any, scaler: Any = None, **options: Any) -> None:
        self.scaler = scaler

    def __call__(self, loader: Iterable[Any]) -> Iterable[Any]:
        return loader

    def backward(self, loss: Tensor, **parts: Any) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def epochs(self, count: int) -> Iterator[int]:
        return iter(range(count))

    def resume(self, run_dir: Any = None) -> int:
        return 0

    def close(self) -> None:
        pass


class Net(nn.Module):
    """Has BatchNorm buffers, which a bad forward pass would change, and dropout, which draws."""

    def __init__(self, features: int = 6, width: int = 12, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(features, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.drop(torch.relu(self.norm(self.inner(x))))
        return torch.as_tensor(self.head(hidden))


def make_batches(count: int, size: int = 8, features: int = 6) -> list[Batch]:
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(features, 1, generator=generator)
    made = []
    for _ in range(count):
        x = torch.randn(size, features, generator=generator)
        made.append((x, x @ weights + 0.1 * torch.randn(size, 1, generator=generator)))
    return made


def train(
    guard: Any, model: nn.Module, optimizer: Any, batches: Iterable[Batch], scheduler: Any = None
) -> None:
    """The usual loop with a squared error."""
    for x, y in guard(batches):
        loss = F.mse_loss(model(x), y)
        guard.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()


def sgd(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    guard = watch(model, optimizer)
    train(guard, model, optimizer, make_batches(30))
    guard.close()
    return [model, optimizer]


def sgd_momentum_schedule(watch: Watch) -> Parts:
    model = Net(dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    guard = watch(model, optimizer, scheduler=scheduler)
    train(guard, model, optimizer, make_batches(30), scheduler)
    guard.close()
    return [model, optimizer, scheduler]


def adam(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    guard = watch(model, optimizer)
    train(guard, model, optimizer, make_batches(60))
    guard.close()
    return [model, optimizer]


def adamw_dropout(watch: Watch) -> Parts:
    model = Net(dropout=0.3)
    groups = [
        {"params": model.inner.parameters(), "lr": 0.005},
        {"params": [*model.norm.parameters(), *model.head.parameters()], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    guard = watch(model, optimizer)
    train(guard, model, optimizer, make_batches(30))
    guard.close()
    return [model, optimizer]


def rmsprop(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005, momentum=0.5)
    guard = watch(model, optimizer)
    train(guard, model, optimizer, make_batches(30))
    guard.close()
    return [model, optimizer]


def adagrad(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    guard = watch(model, optimizer)
    train(guard, model, optimizer, make_batches(30))
    guard.close()
    return [model, optimizer]


def lbfgs(watch: Watch) -> Parts:
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
    guard = watch(model, optimizer)
    for x, y in guard(make_batches(8)):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    guard.close()
    return [model, optimizer]


def accumulation(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = watch(model, optimizer)
    for number, (x, y) in enumerate(guard(make_batches(40))):
        guard.backward(F.mse_loss(model(x), y) / 4)
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    guard.close()
    return [model, optimizer]


def scaler(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=8)
    guard = watch(model, optimizer, scaler=scaler)
    for x, y in guard(make_batches(24)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        guard.backward(loss)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    guard.close()
    return [model, optimizer, scaler]


def two_optimizers(watch: Watch) -> Parts:
    maker, judge = nn.Linear(4, 6), Net()
    for_maker = torch.optim.Adam(maker.parameters(), lr=0.005)
    for_judge = torch.optim.Adam(judge.parameters(), lr=0.005)
    guard = watch([maker, judge], [for_maker, for_judge])
    for x, _ in guard(make_batches(20)):
        made = maker(torch.randn(8, 4))
        loss = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
        for_judge.zero_grad()
        guard.backward(loss)
        for_judge.step()
        for_maker.zero_grad()
        guard.backward(F.softplus(-judge(made)).mean())
        for_maker.step()
    guard.close()
    return [maker, judge, for_maker, for_judge]


def named_parts(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = watch(model, optimizer)
    for x, y in guard(make_batches(30)):
        out = model(x)
        fit, small = F.mse_loss(out, y), 1e-3 * out.square().mean()
        guard.backward(fit + small, fit=fit, small=small)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return [model, optimizer]


def nan_of_a_root(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = watch(model, optimizer)
    for number, (x, y) in enumerate(guard(make_batches(30))):
        shift = 1.0 if number == 20 else 0.0
        error = model(x) - y
        loss = torch.sqrt(error * error - shift).square().mean()
        guard.backward(loss, fit=loss)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return [model, optimizer]


def nan_in_the_data(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = make_batches(30)
    batches[12][0][3, 2] = float("nan")
    guard = watch(model, optimizer)
    train(guard, model, optimizer, batches)
    guard.close()
    return [model, optimizer]


def infinite_slope(watch: Watch) -> Parts:
    model = nn.Linear(6, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = make_batches(20)
    batches[9][0][5] = 0.0
    guard = watch(model, optimizer)
    for x, _ in guard(batches):
        loss = model(x).abs().sqrt().mean()
        guard.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return [model, optimizer]


def spike(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    batches = make_batches(60)
    batches[45][1].mul_(1e4)
    guard = watch(model, optimizer)
    train(guard, model, optimizer, batches)
    guard.close()
    return [model, optimizer]


def accumulation_nan(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = make_batches(24)
    batches[13][1][6] = float("nan")
    guard = watch(model, optimizer)
    for number, (x, y) in enumerate(guard(batches)):
        guard.backward(F.mse_loss(model(x), y) / 2)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    guard.close()
    return [model, optimizer]


def scaler_overflow(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = GradScaler("cpu", init_scale=2.0**126)
    guard = watch(model, optimizer, scaler=scaler)
    for x, y in guard(make_batches(24)):
        guard.backward(F.mse_loss(model(x), y))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    guard.close()
    return [model, optimizer, scaler]


def roll_back(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    policy = Policy(skips_in_a_row=2, grace=1, back_offs=1, back_off_steps=4, rewarm_steps=4)
    guard = watch(
        model, optimizer, policy=policy, snapshots=Snapshots(every=5, on_disk=0, on_signal=False)
    )
    batches = make_batches(50)
    for number in range(21, 29):
        batches[number][1].fill_(float("nan"))
    train(guard, model, optimizer, batches)
    guard.close()
    return [model, optimizer]


def halted(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = watch(model, optimizer, policy=Policy(skips_in_a_row=3, back_offs=0, roll_backs=0))
    batches = make_batches(30)
    for _, y in batches[15:]:
        y.fill_(float("inf"))
    try:
        train(guard, model, optimizer, batches)
    except TrainingHalted:
        pass
    finally:
        guard.close()
    return [model, optimizer]


def poisoned_weight(watch: Watch) -> Parts:
    model = Net()
    with torch.no_grad():
        model.head.weight[0, 4] = float("nan")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = watch(model, optimizer, policy=Policy(skips_in_a_row=3, back_offs=0, halt=False))
    train(guard, model, optimizer, make_batches(12))
    guard.close()
    return [model, optimizer]


def clipped(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    guard = watch(model, optimizer, max_norm=0.5)
    train(guard, model, optimizer, make_batches(30))
    guard.close()
    return [model, optimizer]


def adagc(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = watch(model, optimizer, max_norm=AdaGC(warmup=5))
    train(guard, model, optimizer, make_batches(30))
    guard.close()
    return [model, optimizer]


def zclip(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = watch(model, optimizer, max_norm=ZClip(warmup=5))
    train(guard, model, optimizer, make_batches(30))
    guard.close()
    return [model, optimizer]


def cure_applied(watch: Watch) -> Parts:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = watch(model, optimizer, policy=Policy(cure="apply", replay_gap=2))
    batches = make_batches(30)
    for number in (10, 20):
        batches[number][0][2] = 0.0
    for x, y in guard(batches):
        unit = x / x.norm(dim=1, keepdim=True)
        guard.backward(F.mse_loss(model(unit), y))
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return [model, optimizer]


def averaged_and_resumed(watch: Watch) -> Parts:
    """Stops after one epoch and a half, and goes on from the snapshot on disk."""
    parts: Parts = []
    for limit in (18, None):
        torch.manual_seed(3)
        model = Net()
        average = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        guard = watch(
            model,
            optimizer,
            keep={"average": average},
            snapshots=Snapshots(every=6, disk_share=1.0, on_signal=False),
        )
        made = guard.resume()
        for _ in guard.epochs(2):
            for x, y in guard(make_batches(12)):
                guard.backward(F.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                        mean.lerp_(value, 0.1)
                made += 1
                if made == limit:
                    break
            if made == limit:
                break
        guard.close()
        parts = [model, average, optimizer]
    return parts


HEALTHY: dict[str, Callable[[Watch], Parts]] = {
    each.__name__: each
    for each in (
        sgd,
        sgd_momentum_schedule,
        adam,
        adamw_dropout,
        rmsprop,
        adagrad,
        lbfgs,
        accumulation,
        scaler,
        two_optimizers,
        named_parts,
        averaged_and_resumed,
    )
}
"""A guard must leave these bit for bit as they are without one."""

CHANGED: dict[str, Callable[[Watch], Parts]] = {
    each.__name__: each
    for each in (
        nan_of_a_root,
        nan_in_the_data,
        infinite_slope,
        spike,
        accumulation_nan,
        scaler_overflow,
        roll_back,
        halted,
        poisoned_weight,
        clipped,
        adagc,
        zclip,
        cure_applied,
    )
}
"""A guard skips, clips or rolls back something in these."""
